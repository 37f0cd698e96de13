// A square of 128 x 128 of a matrix, in which all kinds of scales are whole: a block reads it once
// into registers and writes it as 8-bit floats, by rows and, turned in shared memory, by columns.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/grid.cuh"
#include "backend/cuda/largest.cuh"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/values.cuh"
#include "kernels/quantize.h"

namespace bev::cuda {

constexpr int kSide = static_cast<int>(kScaleBlock);
constexpr int kItems = 8;               // columns of a thread, and rows
constexpr int kLines = kSide / kItems;  // groups of columns, and of rows
static_assert(kLines * kLines == kThreads);
constexpr int kWarps = kThreads / kWarp;

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

// A thread's place: 8 x 8 elements of the block's square of columns [begin, end) of a matrix. The
// last rows come first: whoever wrote or read them before has left those in the cache.
struct Place {
  std::int64_t rows, columns;  // those from here on are not the block's
  std::int64_t width;          // of the matrix
  std::int64_t first_row = static_cast<std::int64_t>(gridDim.y - 1 - blockIdx.y) * kSide;
  std::int64_t first_turned = first_row;  // where its first row is in the transpose
  std::int64_t first_column;
  int across = threadIdx.x % kLines, down = threadIdx.x / kLines;

  __device__ Place(std::int64_t all_rows, std::int64_t all_columns)
      : Place(all_rows, 0, all_columns, all_columns) {}
  __device__ Place(std::int64_t all_rows, std::int64_t begin, std::int64_t end,
                   std::int64_t all_columns)
      : rows(all_rows),
        columns(end),
        width(all_columns),
        first_column(begin + static_cast<std::int64_t>(blockIdx.x) * kSide) {}
  // Whether row i of the thread's eight is in the matrix, with its columns.
  __device__ bool has_row(int i) const { return row() + i < rows && column() < columns; }
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
    load(x, at, [](std::int64_t row) { return row; });
  }
  // Row r is row source(r) of x, or zeros where that is -1.
  template <class Source>
  __device__ void load(const T* x, const Place& at, const Source& source) {
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const std::int64_t row = at.has_row(i) ? source(at.row() + i) : -1;
      if (row >= 0) {
        rows[i].load(x + row * at.width + at.column());
      } else {
#pragma unroll
        for (int j = 0; j < kItems; ++j) rows[i].set(j, 0);
      }
    }
  }
  __device__ float largest_in_row(int i) const {
    float most = 0;
#pragma unroll
    for (int j = 0; j < kItems; ++j) most = larger(most, rows[i][j]);
    return most;
  }
  __device__ float largest_in_column(int j) const {
    float most = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) most = larger(most, rows[i][j]);
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

// The largest number of the block's square, for every thread.
__device__ inline float largest_of_square(float mine, float* warp_largest) {
  mine = reduce_warp<Max>(mine);
  if (threadIdx.x % kWarp == 0) warp_largest[threadIdx.x / kWarp] = mine;
  __syncthreads();
  float most = 0;
  for (int warp = 0; warp < kWarps; ++warp) most = fmaxf(most, warp_largest[warp]);
  return most;
}

__device__ inline void store_rows(const Bytes (&bytes)[kItems], const Place& at,
                                  const QuantizeTo& to) {
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!at.has_row(i)) continue;
    *reinterpret_cast<uint2*>(to.rows + (at.row() + i) * at.width + at.column()) =
        make_uint2(bytes[i].low, bytes[i].high);
  }
}

// By way of shared memory. A line of the turned square has 16 units of 8 bytes. Unit u of line l
// lies at u ^ (l / 8), so that the threads of half a warp, which write the same unit of 16 lines,
// meet 16 pairs of banks.
__device__ inline void store_columns(const Bytes (&bytes)[kItems], unsigned char* turned,
                                     const Place& at, const QuantizeTo& to) {
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
    const std::int64_t column = at.first_turned + word * 16;
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

// A scale for each run of 128 in a row. The threads of a row of the square are neighbours in a
// warp; of those that share eight rows, eight find one scale each.
template <class T, __nv_fp8_interpretation_t kKind>
__device__ void quantize_row_runs(const Numbers<T>& numbers, const Place& at,
                                  const QuantizeScale& how, const QuantizeTo& to) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const float in_row = reduce_warp<Max, kLines>(numbers.largest_in_row(i));
    if (at.across == i) most = in_row;
  }
  const Scale mine = how.of(most);
  if (at.across < kItems && at.row() + at.across < at.rows) {
    to.row_scales[at.first_column / kSide * to.row_stride + at.row() + at.across] = mine.inverse;
  }
  Bytes rows[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const float scale = __shfl_sync(0xffffffffu, mine.scale, i, kLines);
    rows[i] = numbers.template quantized_row<kKind>(i, scale);
  }
  store_rows(rows, at, to);
}

// The largest of each column of the square within a warp, to line `warp` of [kWarps][kSide].
template <class T>
__device__ void store_largest_of_columns(const Numbers<T>& numbers, const Place& at,
                                         float* largest) {
  const int warp = threadIdx.x / kWarp;
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    float most = numbers.largest_in_column(j);
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, kLines));
    if (threadIdx.x % kWarp < kLines) largest[warp * kSide + at.across * kItems + j] = most;
  }
}

// And in a column: a thread for each finds its scale.
template <class T, __nv_fp8_interpretation_t kKind>
__device__ void quantize_column_runs(const Numbers<T>& numbers, const Place& at,
                                     const QuantizeScale& how, unsigned char* turned,
                                     const QuantizeTo& to) {
  float* largest = reinterpret_cast<float*>(turned);
  float* scales = largest + kWarps * kSide;
  static_assert((kWarps + 1) * kSide * sizeof(float) <= kSide * kSide);
  store_largest_of_columns(numbers, at, largest);
  __syncthreads();
  if (threadIdx.x < kSide) {
    float most = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      most = fmaxf(most, largest[warp * kSide + threadIdx.x]);
    }
    const Scale scale = how.of(most);
    scales[threadIdx.x] = scale.scale;
    const std::int64_t column = at.first_column + threadIdx.x;
    if (column < at.columns) {
      to.column_scales[at.first_turned / kSide * to.column_stride + column] = scale.inverse;
    }
  }
  __syncthreads();
  Bytes columns[kItems];
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    columns[j] = numbers.template quantized_column<kKind>(j, scales[at.across * kItems + j]);
  }
  __syncthreads();
  store_columns(columns, turned, at, to);
}

// The block's square in all forms that are wanted. turned [kSide * kSide] and warp_largest [kWarps]
// are shared memory that nobody reads any more.
template <class T, ScaleBlock kBlock, __nv_fp8_interpretation_t kKind>
__device__ void quantize_numbers(const Numbers<T>& numbers, const Place& at,
                                 const QuantizeScale& how, unsigned char* turned,
                                 float* warp_largest, const QuantizeTo& to) {
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

// What a call writes, as kernels see it.
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

// At least one, which writes a scale.
inline dim3 squares(std::int64_t rows, std::int64_t columns) {
  return dim3(static_cast<unsigned>(ceil_div(columns, kSide)),
              static_cast<unsigned>(std::max<std::int64_t>(ceil_div(rows, kSide), 1)));
}

}  // namespace bev::cuda
