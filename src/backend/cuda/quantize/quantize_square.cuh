// FP8 quantisation of a 128 x 128 square, the unit that contains whole blocks of every scale type:
// a block of threads loads it once into registers and writes it in row form and, transposed through
// shared memory, in column form.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/device/amax.cuh"
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "kernels/quantize.h"

namespace bev::cuda {

constexpr int kSide = static_cast<int>(kScaleBlock);
constexpr int kItems = 8;               // columns per thread, and rows
constexpr int kLines = kSide / kItems;  // thread columns, and thread rows
static_assert(kLines * kLines == kThreads);
constexpr int kWarps = kThreads / kWarp;

// Occupancy in blocks per SM, so that one loads while others compute and store; limited by
// registers, of which 32-bit elements need twice as many.
template <class T>
constexpr int at_once(int blocks) {
  return sizeof(T) == 4 ? 1 : blocks;
}
struct Scale {
  float scale, inverse;
};

__device__ inline Scale scale_of(float amax, float largest, float margin_factor) {
  if (!isfinite(amax)) return {1, __int_as_float(0x7fc00000)};
  if (amax == 0) return {1, 1};
  float scale = __fmul_rn(__fdiv_rn(largest, amax), margin_factor);
  if (!isfinite(scale)) scale = 3.402823466e+38f;
  return {scale, __fdiv_rn(1, scale)};
}

// Destinations, laid out as in QuantizeArgs.
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

// Position of a thread: 8 x 8 elements of the block's square in columns [begin, end) of a matrix.
// The last rows are scheduled first, because the previous kernel left them in the L2 cache.
struct SquareTile {
  int width;  // of the matrix
  std::int64_t first_row = static_cast<std::int64_t>(gridDim.y - 1 - blockIdx.y) * kSide;
  std::int64_t first_turned = first_row;  // column of first_row in the transpose
  std::int64_t first_column;
  int rows, columns;  // rows and columns of the square that are inside the matrix
  int across = threadIdx.x % kLines, down = threadIdx.x / kLines;

  __device__ SquareTile(std::int64_t all_rows, std::int64_t all_columns)
      : SquareTile(all_rows, 0, all_columns, all_columns) {}
  __device__ SquareTile(std::int64_t all_rows, std::int64_t begin, std::int64_t end,
                        std::int64_t all_columns)
      : width(static_cast<int>(all_columns)),
        first_column(begin + static_cast<std::int64_t>(blockIdx.x) * kSide),
        rows(within(all_rows - first_row)),
        columns(within(end - first_column)) {}
  // True if row i of the thread's eight is inside the matrix, and so are its columns.
  __device__ bool has_row(int i) const {
    return down * kItems + i < rows && across * kItems < columns;
  }
  __device__ std::int64_t row() const { return first_row + down * kItems; }
  __device__ std::int64_t column() const { return first_column + across * kItems; }
  __device__ static int within(std::int64_t left) {
    return static_cast<int>(max(std::int64_t{0}, min(left, std::int64_t{kSide})));
  }
};

// Shared memory of a block, in addition to the transposed square.
struct SquareScales {
  alignas(16) float of_rows[kSide], of_columns[kSide];
  float warp_amax[kWarps];
};

// Element i of a pack. For bf16 the upper half of a word takes one instruction instead of two.
template <class T, int N>
__device__ float number(const Pack<T, N>& pack, int i) {
  if constexpr (kDtypeOf<T> == Dtype::kBf16) {
    const std::uint32_t pair = reinterpret_cast<const std::uint32_t*>(pack.items)[i / 2];
    return __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
  } else {
    return pack[i];
  }
}

// Only called by threads that have seen an infinity, since testing each element costs more than
// rounding it. Setting the lowest mantissa bit turns an infinity into NaN.
template <class T, int N>
__device__ void make_infinities_nan(Pack<T, N>& pack) {
  auto* words = reinterpret_cast<std::uint32_t*>(pack.items);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int bit = i * static_cast<int>(sizeof(T)) * 8;
    if (isinf(number(pack, i))) words[bit / 32] |= 1u << (bit % 32);
  }
}

// most = max(most, |x|) elementwise; `most` is non-negative. 16-bit elements are handled in pairs.
template <class T, int N>
__device__ void raise_sizes(Pack<T, N>& most, const Pack<T, N>& x) {
  if constexpr (sizeof(T) == 2) {
    using Pair = std::conditional_t<kDtypeOf<T> == Dtype::kBf16, __nv_bfloat162, __half2>;
#pragma unroll
    for (int w = 0; w < N / 2; ++w) {
      const std::uint32_t sizes = reinterpret_cast<const std::uint32_t*>(x.items)[w] & 0x7fff7fffu;
      Pair& pair = reinterpret_cast<Pair*>(most.items)[w];
      pair = __hmax2(pair, reinterpret_cast<const Pair&>(sizes));
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) most.set(i, larger(most[i], x[i]));
  }
}

// Eight 4-byte elements from shared memory, starting at a multiple of eight.
template <class N>
__device__ void read_eight(const N* from, N (&out)[kItems]) {
  static_assert(sizeof(N) == 4);
  *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(from);
  *reinterpret_cast<uint4*>(out + 4) = *reinterpret_cast<const uint4*>(from + 4);
}

// Eight FP8 elements.
struct Bytes {
  std::uint32_t low = 0, high = 0;
};

// NaN stays NaN. Infinities would saturate, so they must have been turned into NaN before.
template <__nv_fp8_interpretation_t kKind>
__device__ __nv_fp8x2_storage_t quantized_pair(float a, float b, float scale) {
  const float2 scaled = make_float2(__fmul_rn(a, scale), __fmul_rn(b, scale));
  return __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, kKind);
}
template <__nv_fp8_interpretation_t kKind>
__device__ std::uint32_t quantized_four(float a, float b, float c, float d, float scale) {
  const ushort2 pairs =
      make_ushort2(quantized_pair<kKind>(a, b, scale), quantized_pair<kKind>(c, d, scale));
  return reinterpret_cast<const std::uint32_t&>(pairs);
}

// Elements of the thread, zero outside the matrix.
template <class T>
struct Numbers {
  using Line = Pack<T, kItems>;
  Line rows[kItems];

  __device__ void load(const T* x, const SquareTile& at) {
    const T* from = x + at.row() * at.width + at.column();
    load(at, [&](int i) { return from + i * at.width; });
  }
  // Row i of the thread's eight is at address(i).
  template <class Address>
  __device__ void load(const SquareTile& at, const Address& address) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      if (at.has_row(i)) {
        rows[i].load(address(i));
      } else {
        rows[i] = {};
      }
    }
  }
  __device__ float at(int i, int j) const { return number(rows[i], j); }
  __device__ Line column_amax() const {
    Line most = {};
#pragma unroll
    for (int i = 0; i < kItems; ++i) raise_sizes(most, rows[i]);
    return most;
  }

  template <__nv_fp8_interpretation_t kKind>
  __device__ Bytes quantized_row(int i, float scale) const {
    auto four = [&](int j) {
      return quantized_four<kKind>(at(i, j), at(i, j + 1), at(i, j + 2), at(i, j + 3), scale);
    };
    return {four(0), four(4)};
  }
  template <__nv_fp8_interpretation_t kKind>
  __device__ Bytes quantized_column(int j, float scale) const {
    auto four = [&](int i) {
      return quantized_four<kKind>(at(i, j), at(i + 1, j), at(i + 2, j), at(i + 3, j), scale);
    };
    return {four(0), four(4)};
  }
  __device__ void make_infinities_nan() {
#pragma unroll
    for (int i = 0; i < kItems; ++i) cuda::make_infinities_nan(rows[i]);
  }
};

// Transposes a 4 x 4 block of bytes.
__device__ inline void turn(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d,
                            std::uint32_t (&out)[4]) {
  const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), cd_low = __byte_perm(c, d, 0x5140);
  const std::uint32_t ab_high = __byte_perm(a, b, 0x7362), cd_high = __byte_perm(c, d, 0x7362);
  out[0] = __byte_perm(ab_low, cd_low, 0x5410);
  out[1] = __byte_perm(ab_low, cd_low, 0x7632);
  out[2] = __byte_perm(ab_high, cd_high, 0x5410);
  out[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

__device__ inline void turn(const Bytes (&rows)[kItems], Bytes (&columns)[kItems]) {
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

// amax of the block's square, returned to every thread.
__device__ inline float square_amax(float mine, float* warp_amax) {
  mine = reduce_warp<Max>(mine);
  if (threadIdx.x % kWarp == 0) warp_amax[threadIdx.x / kWarp] = mine;
  __syncthreads();
  float most = 0;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) most = fmaxf(most, warp_amax[warp]);
  return most;
}

__device__ inline void store_rows(const Bytes (&bytes)[kItems], const SquareTile& at,
                                  const QuantizeTo& to) {
  std::uint8_t* out = to.rows + at.row() * at.width + at.column();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!at.has_row(i)) continue;
    *reinterpret_cast<uint2*>(out + i * at.width) = make_uint2(bytes[i].low, bytes[i].high);
  }
}

// Stores the transposed square through shared memory. A line has 16 units of 8 bytes, and unit u of
// line l is stored at u ^ (l / 8) (swizzle), so that the threads of a half warp, which write the
// same unit of 16 lines, use 16 different pairs of banks.
__device__ inline void store_columns(const Bytes (&bytes)[kItems], unsigned char* turned,
                                     const SquareTile& at, const QuantizeTo& to) {
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    const int line = at.across * kItems + j, unit = at.down ^ at.across;
    *reinterpret_cast<uint2*>(turned + line * kSide + unit * kItems) =
        make_uint2(bytes[j].low, bytes[j].high);
  }
  __syncthreads();
  // Stores are 16 bytes wide: a pair of units, which the swizzle may have swapped.
  constexpr int kWords = kSide / 16, kStep = kThreads / kWords;
  const int first = threadIdx.x / kWords, word = threadIdx.x % kWords;
  const std::int64_t column = at.first_turned + word * 16;
  if (column >= to.padded) return;
  std::uint8_t* out = to.columns + (at.first_column + first) * to.padded + column;
#pragma unroll
  for (int i = 0; i < kSide / kStep; ++i) {
    const int line = first + i * kStep, group = line / kItems;
    if (line >= at.columns) return;
    uint4 value =
        *reinterpret_cast<const uint4*>(turned + line * kSide + (word ^ (group / 2)) * 16);
    if (group % 2 != 0) value = make_uint4(value.z, value.w, value.x, value.y);
    *reinterpret_cast<uint4*>(out + i * kStep * to.padded) = value;
  }
}

// One scale for the whole square.
template <class T, ScaleBlock kBlock, __nv_fp8_interpretation_t kKind>
__device__ void quantize_square(const Numbers<T>& numbers, const SquareTile& at, const Scale& scale,
                                unsigned char* turned, const QuantizeTo& to) {
  constexpr bool kWhole = kBlock == ScaleBlock::kTensor;
  if (threadIdx.x == 0 && (!kWhole || (blockIdx.x == 0 && blockIdx.y == 0))) {
    const std::int64_t down = at.first_row / kSide, across = at.first_column / kSide;
    const std::int64_t in_rows = kWhole ? 0 : down * to.row_stride + across;
    const std::int64_t in_columns = kWhole ? 0 : across * to.column_stride + down;
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

// Maximum of each of eight elements over kLines adjacent lanes: lane l returns that of element l /
// 2. In each step a lane sends half of its elements and keeps the other half.
__device__ inline float line_amax(float (&numbers)[kItems]) {
  static_assert(kLines == 2 * kItems);
  const int lane = threadIdx.x % kLines;
#pragma unroll
  for (int left = kItems / 2; left > 0; left /= 2) {
    const bool upper = (lane & (2 * left)) != 0;
#pragma unroll
    for (int k = 0; k < left; ++k) {
      const float passed = upper ? numbers[k] : numbers[k + left];
      const float kept = upper ? numbers[k + left] : numbers[k];
      numbers[k] = fmaxf(kept, __shfl_xor_sync(0xffffffffu, passed, 2 * left));
    }
  }
  return fmaxf(numbers[0], __shfl_xor_sync(0xffffffffu, numbers[0], 1));
}

// A scale per run of 128 in a row, whose threads are adjacent in a warp. Two lanes compute the
// scale of each of their eight rows.
template <class T, __nv_fp8_interpretation_t kKind>
__device__ void quantize_row_runs(Numbers<T>& numbers, bool infinite, const SquareTile& at,
                                  const QuantizeScale& how, float* scales, const QuantizeTo& to) {
  float most[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) most[i] = pack_amax(numbers.rows[i]);
  if (infinite) numbers.make_infinities_nan();
  const Scale mine = how.of(line_amax(most));
  const int row = at.down * kItems + at.across / 2;
  if (at.across % 2 == 0) {
    scales[row] = mine.scale;
    if (row < at.rows) {
      to.row_scales[at.first_column / kSide * to.row_stride + at.first_row + row] = mine.inverse;
    }
  }
  __syncwarp();
  alignas(16) float scale[kItems];
  read_eight(scales + at.down * kItems, scale);
  Bytes rows[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    rows[i] = numbers.template quantized_row<kKind>(i, scale[i]);
  }
  store_rows(rows, at, to);
}

// Column amax of the square within a warp, written to line `warp` of [kWarps][kSide].
template <class T>
__device__ void store_column_amax(Pack<T, kItems> most, const SquareTile& at, T* largest) {
  Pack<T, kItems> other = most;
  auto* words = reinterpret_cast<std::uint32_t*>(other.items);
#pragma unroll
  for (int w = 0; w < Pack<T, kItems>::kBytes / 4; ++w) {
    words[w] = __shfl_xor_sync(0xffffffffu, words[w], kLines);
  }
  raise_sizes(most, other);
  if (threadIdx.x % kWarp < kLines) {
    most.store(largest + threadIdx.x / kWarp * kSide + at.across * kItems);
  }
}

// A scale per run of 128 in a column, one thread per column; `own` has the column amax of the
// thread.
template <class T, __nv_fp8_interpretation_t kKind>
__device__ void quantize_column_runs(const Numbers<T>& numbers, const Pack<T, kItems>& own,
                                     const SquareTile& at, const QuantizeScale& how,
                                     unsigned char* turned, float* scales, const QuantizeTo& to) {
  T* largest = reinterpret_cast<T*>(turned);
  static_assert(kWarps * kSide * sizeof(T) <= kSide * kSide);
  store_column_amax(own, at, largest);
  __syncthreads();
  if (threadIdx.x < kSide) {
    float most = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      most = fmaxf(most, widen(largest[warp * kSide + threadIdx.x]));
    }
    const Scale scale = how.of(most);
    scales[threadIdx.x] = scale.scale;
    if (static_cast<int>(threadIdx.x) < at.columns) {
      to.column_scales[at.first_turned / kSide * to.column_stride + at.first_column + threadIdx.x] =
          scale.inverse;
    }
  }
  __syncthreads();
  alignas(16) float scale[kItems];
  read_eight(scales + at.across * kItems, scale);
  Bytes columns[kItems];
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    columns[j] = numbers.template quantized_column<kKind>(j, scale[j]);
  }
  store_columns(columns, turned, at, to);
}

// Quantises the block's square into all requested forms. turned [kSide * kSide] and scales are
// shared memory that is free for use.
template <class T, ScaleBlock kBlock, __nv_fp8_interpretation_t kKind>
__device__ void quantize_numbers(Numbers<T>& numbers, const SquareTile& at,
                                 const QuantizeScale& how, unsigned char* turned,
                                 SquareScales& scales, const QuantizeTo& to) {
  const Pack<T, kItems> in_columns = numbers.column_amax();
  const float mine = pack_amax(in_columns);
  const bool infinite = isinf(mine);
  float most = 0;
  if (kBlock == ScaleBlock::kSquare || how.seen != nullptr) {
    most = square_amax(mine, scales.warp_amax);
  }
  if (how.seen != nullptr && threadIdx.x == 0) raise_amax(how.seen, most);
  if constexpr (kBlock == ScaleBlock::kRun) {
    if (to.rows != nullptr) {
      quantize_row_runs<T, kKind>(numbers, infinite, at, how, scales.of_rows, to);
    }
    if (to.columns == nullptr) return;
    if (infinite) numbers.make_infinities_nan();
    quantize_column_runs<T, kKind>(numbers, in_columns, at, how, turned, scales.of_columns, to);
  } else {
    if (infinite) numbers.make_infinities_nan();
    const Scale scale = how.of(kBlock == ScaleBlock::kTensor ? *how.amax : most);
    quantize_square<T, kBlock, kKind>(numbers, at, scale, turned, to);
  }
}

// Destinations of a call as kernels see them.
inline QuantizeTo quantize_to(const QuantizeArgs& args) {
  auto bytes = [](const View& view) { return static_cast<std::uint8_t*>(view.data); };
  auto stride = [](const View& scales) {
    return scales.shape.ndim() == 2 ? scales.shape[1] : std::int64_t{1};
  };
  return {bytes(args.rows),
          address<float>(args.row_scales),
          bytes(args.columns),
          address<float>(args.column_scales),
          stride(args.row_scales),
          stride(args.column_scales),
          args.groups.padded_of(args.x, args.block)};
}
inline QuantizeScale quantize_scale(const QuantizeArgs& args) {
  return {args.amax, args.seen, largest_of(args.format), ldexpf(1, -args.margin)};
}

// At least one block, which writes the tensor scale.
inline dim3 squares(std::int64_t rows, std::int64_t columns) {
  return dim3(static_cast<unsigned>(ceil_div(columns, kSide)),
              static_cast<unsigned>(std::max<std::int64_t>(ceil_div(rows, kSide), 1)));
}

}  // namespace bev::cuda
