// Elementwise kernels, casts, dropout, strided row copies and segment sums; all memory bound.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/random.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/elementwise/column_sums.h"
#include "backend/cuda/tables.h"
#include "kernels/elementwise.h"
#include "tensor/random_rows.h"

namespace bev {

namespace cuda {
namespace {

// Writes one bit pattern; traffic: one element per element.
template <class Word, int N>
struct FillWork {
  struct Values {};
  static constexpr int kCount = N;
  Word* x;
  Word value;
  __device__ Values read(std::int64_t) const { return {}; }
  __device__ void write(std::int64_t at, Values) const {
    if constexpr (N == 1) {
      x[at] = value;
    } else {
      alignas(16) Word items[N];
#pragma unroll
      for (int i = 0; i < N; ++i) items[i] = value;
      *reinterpret_cast<uint4*>(x + at) = *reinterpret_cast<const uint4*>(items);
    }
  }
};

template <class Word>
void fill_words(CudaQueue& queue, const View& x, Word value) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(Word));
  Word* data = static_cast<Word*>(x.data);
  const std::int64_t packs = aligned(data) ? x.numel() / kWide : 0, done = packs * kWide;
  launch_flat(queue, "fill", FillWork<Word, kWide>{data, value}, packs);
  launch_flat(queue, "fill", FillWork<Word, 1>{data + done, value}, x.numel() - done);
}

void fill(const Stream& stream, const View& x, double value) {
  CudaQueue& queue = queue_of(stream);
  const float single = static_cast<float>(value);
  switch (x.dtype) {
    case Dtype::kF64:
      return fill_words(queue, x, std::bit_cast<std::uint64_t>(value));
    case Dtype::kF32:
      return fill_words(queue, x, std::bit_cast<std::uint32_t>(single));
    case Dtype::kBf16:
      return fill_words(queue, x, bev::Bf16(single).bits);
    case Dtype::kF16:
      return fill_words(queue, x, bev::F16(single).bits);
    case Dtype::kI64:
      return fill_words(queue, x, static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
    case Dtype::kI32:
      return fill_words(queue, x, static_cast<std::uint32_t>(static_cast<std::int32_t>(value)));
    case Dtype::kU8:
      return fill_words(queue, x, static_cast<std::uint8_t>(value));
  }
}

// y = beta y + alpha x: reads both (y unless beta is 0), writes y.
template <class X, class Y, int N>
struct ScaledWork {
  struct Values {
    Pack<X, N> x;
    Pack<Y, N> y;
  };
  static constexpr int kCount = N;
  const X* x;
  Y* y;
  float alpha, beta;
  __device__ Values read(std::int64_t at) const {
    Values values;
    values.x.load(x + at);
    if (beta != 0) values.y.load(y + at);
    return values;
  }
  __device__ void write(std::int64_t at, Values values) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float scaled = alpha * values.x[i];
      values.y.set(i, beta != 0 ? beta * values.y[i] + scaled : scaled);
    }
    values.y.store(y + at);
  }
};

// Elements per access so that both types use 8 or 16 bytes.
template <class X, class Y>
inline constexpr int kSharedPack = sizeof(X) == 2 && sizeof(Y) == 2 ? 8 : 4;

template <class X, class Y>
void scaled(CudaQueue& queue, const View& from, const View& to, float alpha, float beta) {
  constexpr int kWide = kSharedPack<X, Y>;
  const X* x = address<X>(from);
  Y* y = address<Y>(to);
  const std::int64_t packs = aligned(x, y) ? from.numel() / kWide : 0, done = packs * kWide;
  launch_flat(queue, "axpby", ScaledWork<X, Y, kWide>{x, y, alpha, beta}, packs);
  launch_flat(queue, "axpby", ScaledWork<X, Y, 1>{x + done, y + done, alpha, beta},
              from.numel() - done);
}

void axpby(const Stream& stream, double alpha, const View& x, double beta, const View& y) {
  BEV_CHECK(x.numel() == y.numel(), "axpby: ", x.shape, " onto ", y.shape);
  visit_value(x.dtype, [&](auto from) {
    visit_value(y.dtype, [&](auto to) {
      scaled<decltype(from), decltype(to)>(queue_of(stream), x, y, static_cast<float>(alpha),
                                           static_cast<float>(beta));
    });
  });
}

// y = factor x; traffic: two elements per element.
template <class T, int N>
struct ScaleWork {
  using Values = Pack<T, N>;
  static constexpr int kCount = N;
  const T* x;
  T* y;
  const float* factor;
  __device__ Values read(std::int64_t at) const {
    Values values;
    values.load(x + at);
    return values;
  }
  __device__ void write(std::int64_t at, Values values) const {
    const float by = *factor;
#pragma unroll
    for (int i = 0; i < N; ++i) values.set(i, by * values[i]);
    values.store(y + at);
  }
};

void scale(const Stream& stream, const View& x, const View& factor, const View& y) {
  BEV_CHECK(x.numel() == y.numel() && factor.numel() == 1, "scale: ", x.shape, " by ", factor.shape,
            " to ", y.shape);
  CudaQueue& queue = queue_of(stream);
  const float* by = address<float>(factor);
  visit_value(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* from = address<T>(x);
    T* to = address<T>(y);
    const std::int64_t packs = aligned(from, to) ? x.numel() / kPack<T> : 0;
    const std::int64_t done = packs * kPack<T>;
    launch_flat(queue, "scale", ScaleWork<T, kPack<T>>{from, to, by}, packs);
    launch_flat(queue, "scale", ScaleWork<T, 1>{from + done, to + done, by}, x.numel() - done);
  });
}

// 1 * x is exact, also for infinities and NaN, so a cast is an axpby.
void cast(const Stream& stream, const View& from, const View& to) {
  BEV_CHECK(from.numel() == to.numel(), "cast: ", from.shape, " to ", to.shape);
  if (from.dtype != to.dtype) return axpby(stream, 1, from, 0, to);
  if (from.data == to.data || from.numel() == 0) return;
  check_cuda(cudaMemcpyAsync(to.data, from.data, from.bytes(), cudaMemcpyDeviceToDevice,
                             queue_of(stream).stream()),
             "copy");
}

// out = a + b; traffic: three elements per element.
template <class T, class B, int N>
struct AddWork {
  struct Values {
    Pack<T, N> a;
    Pack<B, N> b;
  };
  static constexpr int kCount = N;
  const T* a;
  const B* b;
  T* out;
  __device__ Values read(std::int64_t at) const {
    Values values;
    values.a.load(a + at);
    values.b.load(b + at);
    return values;
  }
  __device__ void write(std::int64_t at, Values values) const {
#pragma unroll
    for (int i = 0; i < N; ++i) values.a.set(i, values.a[i] + values.b[i]);
    values.a.store(out + at);
  }
};

template <class T, class B>
void add_typed(CudaQueue& queue, const View& a, const View& b, const View& out) {
  constexpr int kWide = kSharedPack<T, B>;
  const T* x = address<T>(a);
  const B* y = address<B>(b);
  T* z = address<T>(out);
  const std::int64_t packs = aligned(x, y, z) ? a.numel() / kWide : 0, done = packs * kWide;
  launch_flat(queue, "add", AddWork<T, B, kWide>{x, y, z}, packs);
  launch_flat(queue, "add", AddWork<T, B, 1>{x + done, y + done, z + done}, a.numel() - done);
}

void add(const Stream& stream, const View& a, const View& b, const View& out) {
  BEV_CHECK(a.numel() == b.numel() && a.numel() == out.numel(), "add: ", a.shape, " + ", b.shape,
            " to ", out.shape);
  visit_value(b.dtype, [&](auto type) {
    using B = decltype(type);
    if constexpr (sizeof(B) == 2) {
      if (out.dtype == Dtype::kF32) return add_typed<float, B>(queue_of(stream), a, b, out);
    }
    add_typed<B, B>(queue_of(stream), a, b, out);
  });
}

// x += row on every row: reads and writes x; the row stays in registers.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    add_rows_kernel(T* x, const T* row, std::int64_t rows, std::int64_t packs) {
  const std::int64_t pack = own_pack();
  if (pack >= packs) return;
  Pack<T, N> added, values;
  added.load(row + pack * N);
  for (std::int64_t r = first_row(); r < rows; r += row_step()) {
    T* at = x + (r * packs + pack) * N;
    values.load(at);
#pragma unroll
    for (int i = 0; i < N; ++i) values.set(i, values[i] + added[i]);
    values.store(at);
  }
}

void add_rows(const Stream& stream, const View& x, const View& row) {
  BEV_CHECK(x.shape.ndim() == 2 && row.numel() == x.shape[1], "add_rows: ", row.shape, " to ",
            x.shape);
  if (x.numel() == 0) return;
  visit_value(x.dtype, [&](auto type) {
    using T = decltype(type);
    T* to = address<T>(x);
    const T* from = address<T>(row);
    by_pack<T>(aligned(to, from), x.shape[1], [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      const std::int64_t packs = x.shape[1] / kCount;
      const RowGrid grid = row_grid(x.shape[0], packs);
      add_rows_kernel<T, kCount><<<grid.blocks, grid.threads, 0, queue_of(stream).stream()>>>(
          to, from, x.shape[0], packs);
      check_launch("add_rows");
    });
  });
}

struct Keep {
  std::uint32_t threshold;
  float scale;
  RandomRows random;
};

// Reads x, writes y; four elements share a Philox block.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(const T* x, T* y, std::int64_t rows, std::int64_t packs, Keep keep) {
  const std::int64_t pack = own_pack();
  if (pack >= packs) return;
  const std::uint64_t key = *keep.random.random_key;
  for (std::int64_t r = first_row(); r < rows; r += row_step()) {
    const std::int64_t at = (r * packs + pack) * N;
    const std::uint32_t position = static_cast<std::uint32_t>(keep.random.position[r]);
    const std::uint32_t sample = static_cast<std::uint32_t>(keep.random.sample[r]);
    Pack<T, N> values;
    values.load(x + at);
    uint4 words{};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const std::uint32_t column =
          static_cast<std::uint32_t>(keep.random.first_column + pack * N + i);
      if (i == 0 || column % 4 == 0) {
        words = philox({column / 4, position, sample, keep.random.stream}, key);
      }
      const std::uint32_t word = word_of(words, static_cast<int>(column % 4));
      values.set(i, (word >> 9) >= keep.threshold ? values[i] * keep.scale : 0.0f);
    }
    values.store(y + at);
  }
}

void dropout(const Stream& stream, const DropoutArgs& args) {
  BEV_CHECK(args.x.shape == args.y.shape && args.x.shape.ndim() == 2, "dropout: ", args.x.shape,
            " to ", args.y.shape);
  if (args.x.numel() == 0) return;
  const Keep keep{keep_threshold(args.p), static_cast<float>(1 / (1 - args.p)), args.random};
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* x = address<T>(args.x);
    T* y = address<T>(args.y);
    by_pack<T>(aligned(x, y), args.x.shape[1], [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      const std::int64_t packs = args.x.shape[1] / kCount;
      const RowGrid grid = row_grid(args.x.shape[0], packs);
      dropout_kernel<T, kCount><<<grid.blocks, grid.threads, 0, queue_of(stream).stream()>>>(
          x, y, args.x.shape[0], packs, keep);
      check_launch("dropout");
    });
  });
}

template <class Word>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const Word* src, Word* dst, std::int64_t rows, std::int64_t words,
                     std::int64_t src_stride, std::int64_t dst_stride,
                     const std::int32_t* dst_rows) {
  join_kernel_chain();
  const std::int64_t word = own_pack();
  if (word >= words) return;
  for (std::int64_t r = first_row(); r < rows; r += row_step()) {
    const std::int64_t to = dst_rows != nullptr ? dst_rows[r] : r;
    dst[to * dst_stride + word] = src[r * src_stride + word];
  }
}

// Copies in words of this size; returns false if addresses, strides or length in bytes are not
// multiples of it.
template <class Word>
bool copy_words(CudaQueue& queue, const CopyRowsArgs& args) {
  const auto element = static_cast<std::int64_t>(size_of(args.dtype));
  constexpr std::int64_t kSize = sizeof(Word);
  const std::int64_t length = args.columns * element, src_stride = args.src_stride * element;
  const std::int64_t dst_stride = args.dst_stride * element;
  const auto all = reinterpret_cast<std::uintptr_t>(args.src) |
                   reinterpret_cast<std::uintptr_t>(args.dst) |
                   static_cast<std::uintptr_t>(length | src_stride | dst_stride);
  if (all % kSize != 0) return false;
  const RowGrid grid = row_grid(args.rows, length / kSize);
  launch_overlapped(queue, "copy_rows", copy_rows_kernel<Word>, grid.blocks, grid.threads, 0,
                    static_cast<const Word*>(args.src), static_cast<Word*>(args.dst), args.rows,
                    length / kSize, src_stride / kSize, dst_stride / kSize, args.dst_rows);
  return true;
}

void copy_rows(const Stream& stream, const CopyRowsArgs& args) {
  if (args.rows == 0 || args.columns == 0) return;
  CudaQueue& queue = queue_of(stream);
  copy_words<uint4>(queue, args) || copy_words<std::uint64_t>(queue, args) ||
      copy_words<std::uint32_t>(queue, args) || copy_words<std::uint16_t>(queue, args) ||
      copy_words<std::uint8_t>(queue, args);
}

// Finds words whose exponent bits are all set. Reads x once.
template <class Word, int N>
struct FindWork {
  struct Values {
    Word items[N];
  };
  static constexpr int kCount = N;
  const Word* x;
  Word mask;
  std::int32_t* flag;
  __device__ Values read(std::int64_t at) const {
    Values values;
    if constexpr (N == 1) {
      values.items[0] = x[at];
    } else {
      alignas(16) Word words[N];
      *reinterpret_cast<uint4*>(words) = *reinterpret_cast<const uint4*>(x + at);
#pragma unroll
      for (int i = 0; i < N; ++i) values.items[i] = words[i];
    }
    return values;
  }
  __device__ void write(std::int64_t, Values values) const {
    bool found = false;
#pragma unroll
    for (int i = 0; i < N; ++i) found |= (values.items[i] & mask) == mask;
    if (found) *flag = 1;
  }
};

template <class Word>
void find_in_words(CudaQueue& queue, const View& x, Word mask, std::int32_t* flag) {
  constexpr int kWide = 16 / static_cast<int>(sizeof(Word));
  const Word* data = static_cast<const Word*>(x.data);
  const std::int64_t packs = aligned(data) ? x.numel() / kWide : 0, done = packs * kWide;
  launch_flat(queue, "find_nonfinite", FindWork<Word, kWide>{data, mask, flag}, packs);
  launch_flat(queue, "find_nonfinite", FindWork<Word, 1>{data + done, mask, flag},
              x.numel() - done);
}

void find_nonfinite(const Stream& stream, const View& x, std::int32_t* flag) {
  CudaQueue& queue = queue_of(stream);
  switch (x.dtype) {
    case Dtype::kF64:
      return find_in_words(queue, x, std::uint64_t{0x7ff0000000000000}, flag);
    case Dtype::kF32:
      return find_in_words(queue, x, std::uint32_t{0x7f800000}, flag);
    case Dtype::kBf16:
      return find_in_words(queue, x, std::uint16_t{0x7f80}, flag);
    case Dtype::kF16:
      return find_in_words(queue, x, std::uint16_t{0x7c00}, flag);
    default:
      fail_not_float(x.dtype);
  }
}

// First index in [0, count) whose segment is >= `segment`.
__device__ std::int64_t segment_begin(const std::int32_t* segments, std::int64_t count,
                                      std::int64_t segment) {
  std::int64_t low = 0, high = count;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (segments[middle] < segment) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// One block per segment. Reads x once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    segment_sum_kernel(const T* x, const std::int32_t* segments, std::int64_t count, T* sums) {
  __shared__ double shared[kThreads / kWarp];
  const std::int64_t begin = segment_begin(segments, count, blockIdx.x);
  const std::int64_t end = segment_begin(segments, count, std::int64_t{blockIdx.x} + 1);
  double sum = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    sum += static_cast<double>(widen(x[i]));
  }
  sum = reduce_row<Sum>(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = narrow<T>(static_cast<float>(sum));
}

void segment_sum(const Stream& stream, const SegmentSumArgs& args) {
  if (args.sums.numel() == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    segment_sum_kernel<T>
        <<<static_cast<unsigned>(args.sums.numel()), kThreads, 0, queue_of(stream).stream()>>>(
            address<T>(args.x), args.segment, args.x.numel(), address<T>(args.sums));
    check_launch("segment_sum");
  });
}

}  // namespace
}  // namespace cuda

void cuda_fill(const Stream& stream, const View& x, double value) { cuda::fill(stream, x, value); }
void cuda_cast(const Stream& stream, const View& from, const View& to) {
  cuda::cast(stream, from, to);
}

ElementwiseKernels cuda_table(Family<ElementwiseKernels>) {
  return {.add = cuda::add,
          .axpby = cuda::axpby,
          .scale = cuda::scale,
          .add_rows = cuda::add_rows,
          .dropout = cuda::dropout,
          .copy_rows = cuda::copy_rows,
          .find_nonfinite = cuda::find_nonfinite,
          .column_sum = cuda::column_sum,
          .segment_sum = cuda::segment_sum};
}

}  // namespace bev
