// Tensors to 8-bit floats. A block takes a square of 128 x 128, in which all kinds of scales are
// whole, reads it once into registers and writes it by rows and, turned in shared memory, by
// columns.
#include <cuda_fp8.h>

#include "backend/cuda/grid.cuh"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/tables.h"
#include "backend/cuda/values.cuh"
#include "kernels/quantize.h"

namespace bev {

namespace cuda {
namespace {

constexpr int kSide = static_cast<int>(kScaleBlock);
constexpr int kItems = 8;               // columns of a thread, and rows
constexpr int kLines = kSide / kItems;  // groups of columns, and of rows
static_assert(kLines * kLines == kThreads);
constexpr int kWarps = kThreads / kWarp;

struct Scale {
  float scale, inverse;
};

__device__ Scale scale_of(float amax, float largest, float margin_factor) {
  if (!isfinite(amax)) return {1, __int_as_float(0x7fc00000)};
  if (amax == 0) return {1, 1};
  float scale = __fmul_rn(__fdiv_rn(largest, amax), margin_factor);
  if (!isfinite(scale)) scale = 3.402823466e+38f;
  return {scale, __fdiv_rn(1, scale)};
}

// |x|, 0 for NaN.
__device__ float size_of_value(float x) { return isnan(x) ? 0 : fabsf(x); }

// Sizes of floats are ordered as their bits are.
__device__ void raise_to(float* largest, float value) {
  atomicMax(reinterpret_cast<int*>(largest), __float_as_int(value));
}

// What the kernel writes, in memory as QuantizeArgs has it.
struct QuantizeTo {
  std::uint8_t* rows;
  float* row_scales;
  std::uint8_t* columns;
  float* column_scales;
  std::int64_t row_stride, column_stride;  // of the scales
  std::int64_t padded;                     // columns of the transpose
};

struct QuantizeScale {
  const float* amax;
  float* seen;
  float largest, margin_factor;

  __device__ Scale of(float most) const { return scale_of(most, largest, margin_factor); }
};

// A thread's place: 8 x 8 elements of the block's square of the matrix [rows, columns].
struct Place {
  std::int64_t rows, columns;
  std::int64_t first_row = static_cast<std::int64_t>(blockIdx.y) * kSide;
  std::int64_t first_column = static_cast<std::int64_t>(blockIdx.x) * kSide;
  int across = threadIdx.x % kLines, down = threadIdx.x / kLines;

  __device__ Place(std::int64_t all_rows, std::int64_t all_columns)
      : rows(all_rows), columns(all_columns) {}
  __device__ std::int64_t row() const { return first_row + down * kItems; }
  __device__ std::int64_t column() const { return first_column + across * kItems; }
};

// Eight numbers as eight bytes.
struct Bytes {
  std::uint32_t low = 0, high = 0;
  // Numbers 2 k and 2 k + 1.
  __device__ void set_pair(int k, std::uint32_t pair) {
    (k < 2 ? low : high) |= pair << (16 * (k % 2));
  }
};

template <__nv_fp8_interpretation_t kKind>
__device__ std::uint32_t quantized_pair(float a, float b, float scale) {
  const float2 scaled = make_float2(__fmul_rn(a, scale), __fmul_rn(b, scale));
  std::uint32_t bits = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, kKind);
  if (!isfinite(a)) bits = (bits & 0xff00u) | kFp8Nan;
  if (!isfinite(b)) bits = (bits & 0x00ffu) | (kFp8Nan << 8);
  return bits;
}

// The thread's numbers, zero beyond the matrix.
template <class T>
struct Numbers {
  Pack<T, kItems> rows[kItems];

  __device__ void load(const T* x, const Place& at) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (at.row() + i < at.rows && at.column() < at.columns) {
        rows[i].load(x + (at.row() + i) * at.columns + at.column());
      } else {
#pragma unroll
        for (int j = 0; j < kItems; ++j) rows[i].set(j, 0);
      }
    }
  }
  __device__ float largest_in_row(int i) const {
    float most = 0;
#pragma unroll
    for (int j = 0; j < kItems; ++j) most = fmaxf(most, size_of_value(rows[i][j]));
    return most;
  }
  __device__ float largest_in_column(int j) const {
    float most = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) most = fmaxf(most, size_of_value(rows[i][j]));
    return most;
  }
  __device__ float largest() const {
    float most = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) most = fmaxf(most, largest_in_row(i));
    return most;
  }
  template <__nv_fp8_interpretation_t kKind>
  __device__ Bytes quantized_row(int i, float scale) const {
    Bytes bytes;
#pragma unroll
    for (int k = 0; k < kItems / 2; ++k) {
      bytes.set_pair(k, quantized_pair<kKind>(rows[i][2 * k], rows[i][2 * k + 1], scale));
    }
    return bytes;
  }
  template <__nv_fp8_interpretation_t kKind>
  __device__ Bytes quantized_column(int j, float scale) const {
    Bytes bytes;
#pragma unroll
    for (int k = 0; k < kItems / 2; ++k) {
      bytes.set_pair(k, quantized_pair<kKind>(rows[2 * k][j], rows[2 * k + 1][j], scale));
    }
    return bytes;
  }
};

// Four bytes of four words, turned.
__device__ void turn(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d,
                     std::uint32_t (&out)[4]) {
  const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), cd_low = __byte_perm(c, d, 0x5140);
  const std::uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
  out[0] = __byte_perm(ab_low, cd_low, 0x5410);
  out[1] = __byte_perm(ab_low, cd_low, 0x7632);
  out[2] = __byte_perm(ab_high, cd_high, 0x5410);
  out[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

__device__ void turn(const Bytes (&rows)[kItems], Bytes (&columns)[kItems]) {
  std::uint32_t top[4], bottom[4];
  turn(rows[0].low, rows[1].low, rows[2].low, rows[3].low, top);
  turn(rows[4].low, rows[5].low, rows[6].low, rows[7].low, bottom);
#pragma unroll
  for (int j = 0; j < 4; ++j) columns[j] = {top[j], bottom[j]};
  turn(rows[0].high, rows[1].high, rows[2].high, rows[3].high, top);
  turn(rows[4].high, rows[5].high, rows[6].high, rows[7].high, bottom);
#pragma unroll
  for (int j = 0; j < 4; ++j) columns[4 + j] = {top[j], bottom[j]};
}

// The largest number of the block's square, for every thread.
__device__ float largest_of_square(float mine, float* warp_largest) {
  mine = reduce_warp<Max>(mine);
  if (threadIdx.x % kWarp == 0) warp_largest[threadIdx.x / kWarp] = mine;
  __syncthreads();
  float most = 0;
  for (int warp = 0; warp < kWarps; ++warp) most = fmaxf(most, warp_largest[warp]);
  return most;
}

__device__ void store_rows(const Bytes (&bytes)[kItems], const Place& at, const QuantizeTo& to) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (at.row() + i >= at.rows || at.column() >= at.columns) continue;
    *reinterpret_cast<uint2*>(to.rows + (at.row() + i) * at.columns + at.column()) =
        make_uint2(bytes[i].low, bytes[i].high);
  }
}

// By way of shared memory. A line of the turned square has 16 units of 8 bytes. Unit u of line l
// lies at u ^ (l / 8), so that the threads of half a warp, which write the same unit of 16 lines,
// meet 16 pairs of banks.
__device__ void store_columns(const Bytes (&bytes)[kItems], unsigned char* turned, const Place& at,
                              const QuantizeTo& to) {
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int line = at.across * kItems + j, unit = at.down ^ at.across;
    *reinterpret_cast<uint2*>(turned + line * kSide + unit * kItems) =
        make_uint2(bytes[j].low, bytes[j].high);
  }
  __syncthreads();
  // 16 bytes at a time: a pair of units, which the exclusive or may have swapped.
  constexpr int kWords = kSide / 16;
  for (int i = threadIdx.x; i < kSide * kWords; i += kThreads) {
    const int line = i / kWords, word = i % kWords, group = line / kItems;
    const std::int64_t column = at.first_row + word * 16;
    if (at.first_column + line >= at.columns || column >= to.padded) continue;
    uint4 value =
        *reinterpret_cast<const uint4*>(turned + line * kSide + (word ^ (group / 2)) * 16);
    if (group % 2 != 0) value = make_uint4(value.z, value.w, value.x, value.y);
    *reinterpret_cast<uint4*>(to.columns + (at.first_column + line) * to.padded + column) = value;
  }
}

// One scale for all of the square.
template <class T, ScaleBlock kBlock, __nv_fp8_interpretation_t kKind>
__device__ void quantize_square(const Numbers<T>& numbers, const Place& at, const Scale& scale,
                                unsigned char* turned, const QuantizeTo& to) {
  constexpr bool kWhole = kBlock == ScaleBlock::kTensor;
  if (threadIdx.x == 0 && (!kWhole || (blockIdx.x == 0 && blockIdx.y == 0))) {
    const std::int64_t in_rows = kWhole ? 0 : blockIdx.y * to.row_stride + blockIdx.x;
    const std::int64_t in_columns = kWhole ? 0 : blockIdx.x * to.column_stride + blockIdx.y;
    if (to.rows != nullptr) to.row_scales[in_rows] = scale.inverse;
    if (to.columns != nullptr) to.column_scales[in_columns] = scale.inverse;
  }
  Bytes rows[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    rows[i] = numbers.template quantized_row<kKind>(i, scale.scale);
  }
  if (to.rows != nullptr) store_rows(rows, at, to);
  if (to.columns == nullptr) return;
  Bytes columns[kItems];
  turn(rows, columns);
  store_columns(columns, turned, at, to);
}

// A scale for each run of 128 in a row. The threads of a row of the square are neighbours in a
// warp.
template <class T, __nv_fp8_interpretation_t kKind>
__device__ void quantize_row_runs(const Numbers<T>& numbers, const Place& at,
                                  const QuantizeScale& how, const QuantizeTo& to) {
  Bytes rows[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const Scale scale = how.of(reduce_warp<Max, kLines>(numbers.largest_in_row(i)));
    if (at.across == 0 && at.row() + i < at.rows) {
      to.row_scales[blockIdx.x * to.row_stride + at.row() + i] = scale.inverse;
    }
    rows[i] = numbers.template quantized_row<kKind>(i, scale.scale);
  }
  store_rows(rows, at, to);
}

// And in a column, whose threads find its largest number by way of `turned`.
template <class T, __nv_fp8_interpretation_t kKind>
__device__ void quantize_column_runs(const Numbers<T>& numbers, const Place& at,
                                     const QuantizeScale& how, unsigned char* turned,
                                     const QuantizeTo& to) {
  float* largest = reinterpret_cast<float*>(turned);  // [kLines][kSide]
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    largest[at.down * kSide + at.across * kItems + j] = numbers.largest_in_column(j);
  }
  __syncthreads();
  Bytes columns[kItems];
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    float most = 0;
    for (int i = 0; i < kLines; ++i) {
      most = fmaxf(most, largest[i * kSide + at.across * kItems + j]);
    }
    const Scale scale = how.of(most);
    if (at.down == 0 && at.column() + j < at.columns) {
      to.column_scales[blockIdx.y * to.column_stride + at.column() + j] = scale.inverse;
    }
    columns[j] = numbers.template quantized_column<kKind>(j, scale.scale);
  }
  __syncthreads();
  store_columns(columns, turned, at, to);
}

template <class T, ScaleBlock kBlock, __nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const T* x, std::int64_t rows, std::int64_t columns, QuantizeScale how,
                    QuantizeTo to) {
  __shared__ __align__(16) unsigned char turned[kSide * kSide];
  __shared__ float warp_largest[kWarps];
  const Place at(rows, columns);
  Numbers<T> numbers;
  numbers.load(x, at);
  float most = 0;
  if (kBlock == ScaleBlock::kSquare || how.seen != nullptr) {
    most = largest_of_square(numbers.largest(), warp_largest);
  }
  if (how.seen != nullptr && threadIdx.x == 0) raise_to(how.seen, most);
  if constexpr (kBlock == ScaleBlock::kRun) {
    if (to.rows != nullptr) quantize_row_runs<T, kKind>(numbers, at, how, to);
    if (to.columns != nullptr) quantize_column_runs<T, kKind>(numbers, at, how, turned, to);
  } else {
    const Scale scale = how.of(kBlock == ScaleBlock::kTensor ? *how.amax : most);
    quantize_square<T, kBlock, kKind>(numbers, at, scale, turned, to);
  }
}

template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(const T* x, std::int64_t packs, float* amax) {
  __shared__ float shared[kWarps];
  float most = 0;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < packs;
       i += step) {
    Pack<T, kCount> pack;
    pack.load(x + i * kCount);
#pragma unroll
    for (int k = 0; k < kCount; ++k) most = fmaxf(most, size_of_value(pack[k]));
  }
  most = reduce_warp<Max>(most);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (float value : shared) most = fmaxf(most, value);
  raise_to(amax, most);
}

struct AmaxUpdate {
  const float* seen;
  float *history, *used;
  std::int64_t count, steps, interval;
  bool largest;
  const StepState* state;
};

__global__ void __launch_bounds__(kThreads) update_amax_kernel(AmaxUpdate update) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= update.count || update.state->skip != 0) return;
  const std::int64_t now = update.state->update;
  float* entries = update.history + i * update.steps;
  float next = update.seen[i];
  entries[now % update.steps] = next;
  if (now % update.interval != 0) return;
  for (std::int64_t k = 0; update.largest && k < update.steps; ++k) {
    next = entries[k] > next ? entries[k] : next;
  }
  if (next > 0 && isfinite(next)) update.used[i] = next;
}

template <class T, ScaleBlock kBlock, __nv_fp8_interpretation_t kKind>
void launch(CudaQueue& queue, const QuantizeArgs& args, const QuantizeScale& how,
            const QuantizeTo& to) {
  const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  const dim3 blocks(static_cast<unsigned>(ceil_div(columns, kSide)),
                    static_cast<unsigned>(ceil_div(rows, kSide)));
  quantize_kernel<T, kBlock, kKind>
      <<<blocks, kThreads, 0, queue.stream()>>>(address<T>(args.x), rows, columns, how, to);
  check_launch("quantize");
}

template <class T, ScaleBlock kBlock>
void by_format(CudaQueue& queue, const QuantizeArgs& args, const QuantizeScale& how,
               const QuantizeTo& to) {
  if (args.format == Fp8Format::kE4m3) return launch<T, kBlock, __NV_E4M3>(queue, args, how, to);
  launch<T, kBlock, __NV_E5M2>(queue, args, how, to);
}

std::uint8_t* bytes_of(const View& view) { return static_cast<std::uint8_t*>(view.data); }

}  // namespace
}  // namespace cuda

namespace {

void check_quantize(const QuantizeArgs& args) {
  const View& x = args.x;
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  const std::int64_t padded = padded_rows(args.block, rows);
  const bool whole = args.block == ScaleBlock::kTensor;
  BEV_CHECK(columns % (whole ? 16 : kScaleBlock) == 0 && (!whole || args.amax != nullptr) &&
                (args.rows.empty() || args.rows.shape == x.shape) &&
                (args.columns.empty() || args.columns.shape == Shape{columns, padded}) &&
                cuda::aligned(x.data, args.rows.data, args.columns.data),
            ErrorKind::kInternal, "quantize: ", x.shape, " to ", args.rows.shape, " and ",
            args.columns.shape);
}

void quantize(const Stream& stream, const QuantizeArgs& args) {
  check_quantize(args);
  if (args.x.numel() == 0) return;
  auto stride = [](const View& scales) {
    return scales.shape.ndim() == 2 ? scales.shape[1] : std::int64_t{1};
  };
  const cuda::QuantizeScale how{args.amax, args.seen, largest_of(args.format),
                                ldexpf(1, -args.margin)};
  const cuda::QuantizeTo to{cuda::bytes_of(args.rows),
                            cuda::address<float>(args.row_scales),
                            cuda::bytes_of(args.columns),
                            cuda::address<float>(args.column_scales),
                            stride(args.row_scales),
                            stride(args.column_scales),
                            padded_rows(args.block, args.x.shape[0])};
  CudaQueue& queue = queue_of(stream);
  cuda::visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    switch (args.block) {
      case ScaleBlock::kTensor:
        return cuda::by_format<T, ScaleBlock::kTensor>(queue, args, how, to);
      case ScaleBlock::kRun:
        return cuda::by_format<T, ScaleBlock::kRun>(queue, args, how, to);
      case ScaleBlock::kSquare:
        return cuda::by_format<T, ScaleBlock::kSquare>(queue, args, how, to);
    }
  });
}

void amax(const Stream& stream, const View& x, float* amax) {
  CudaQueue& queue = queue_of(stream);
  check_cuda(cudaMemsetAsync(amax, 0, sizeof(float), queue.stream()), "clear a number");
  if (x.numel() == 0) return;
  cuda::visit_value(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* data = cuda::address<T>(x);
    cuda::by_pack<T>(cuda::aligned(data), x.numel(), [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      const std::int64_t packs = x.numel() / kCount;
      // A few packs for each thread, so that their reads are under way together.
      constexpr std::int64_t kPacks = 8;
      const std::int64_t blocks =
          std::min<std::int64_t>(cuda::ceil_div(packs, cuda::kThreads * kPacks), 4096);
      cuda::amax_kernel<T, kCount>
          <<<static_cast<unsigned>(blocks), cuda::kThreads, 0, queue.stream()>>>(data, packs, amax);
      check_launch("amax");
    });
  });
}

void update_amax(const Stream& stream, const AmaxUpdateArgs& args) {
  const std::int64_t count = args.seen.numel();
  const cuda::AmaxUpdate update{args.seen.as<float>(), args.history.as<float>(),
                                args.used.as<float>(), count,
                                args.history.shape[1], args.interval,
                                args.largest,          args.state};
  if (count == 0) return;
  cuda::update_amax_kernel<<<static_cast<unsigned>(cuda::ceil_div(count, cuda::kThreads)),
                             cuda::kThreads, 0, queue_of(stream).stream()>>>(update);
  check_launch("update_amax");
}

}  // namespace

QuantizeKernels cuda_quantize_kernels() {
  return {.amax = amax,
          .quantize = quantize,
          .product = cuda_scaled_product,
          .update_amax = update_amax};
}

}  // namespace bev
