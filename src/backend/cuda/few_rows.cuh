// Products of a few rows with a weight, y = x w^T, in 16-bit numbers: reading the weight takes the
// time. A block makes kColumns columns of up to 8 kTiles rows on the tensor cores, the weight being
// the left operand; its warps share the inner dim and add their sums up in shared memory.
//
// A lane reads 16 bytes of a row at a time, 8 neighbours of the inner dim, where two products of 16
// want 4 times 2 that lie apart. Both operands are read so, and the order of a sum's terms is free.
#pragma once

#include "backend/cuda/attention_mma.cuh"
#include "backend/cuda/reduce.cuh"

namespace bev::cuda::few_rows {

constexpr int kColumns = 16;  // of a block
constexpr int kDepth = 32;    // of a warp's step
constexpr int kAhead = 4;     // steps whose operands are under way
constexpr int kTileRows = 8;

// Rows of x and w are whole 16-byte words.
template <class T>
struct Operands {
  const T *x, *w;  // [rows, depth], [columns, depth] from the block's first column on
  int rows, columns, depth;
};

// 8 elements from `k` on; zeros past the row's end, where that may be.
template <bool kMayEnd, class T>
__device__ uint4 words_at(const T* row, int k, int depth) {
  return kMayEnd && k >= depth ? uint4{} : *reinterpret_cast<const uint4*>(row + k);
}
// The same of what nobody reads again.
template <bool kMayEnd, class T>
__device__ uint4 words_once(const T* row, int k, int depth) {
  return kMayEnd && k >= depth ? uint4{} : __ldcs(reinterpret_cast<const uint4*>(row + k));
}

// The rows of a lane. Where there is no such row it takes the last one, and its sums are not used.
template <int kTiles, class T>
struct LaneRows {
  const T *w[2], *x[kTiles];

  __device__ explicit LaneRows(const Operands<T>& in) {
    const int row = static_cast<int>(threadIdx.x) % kWarp / 4;
    for (int i = 0; i < 2; ++i) w[i] = in.w + row_at(min(row + 8 * i, in.columns - 1), in.depth);
    for (int t = 0; t < kTiles; ++t) {
      x[t] = in.x + row_at(min(row + kTileRows * t, in.rows - 1), in.depth);
    }
  }
  __device__ static std::int64_t row_at(int row, int depth) {
    return static_cast<std::int64_t>(row) * depth;
  }
};

// kAhead steps of a warp, kWarps kDepth from one to the next; all is read before the first product.
template <int kWarps, bool kMayEnd, int kTiles, class T>
__device__ void add_steps(float (&sums)[kTiles][4], const LaneRows<kTiles, T>& rows, int first,
                          int depth) {
  uint4 left[kAhead][2], right[kAhead][kTiles];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int k = first + i * kWarps * kDepth;
    for (int half = 0; half < 2; ++half) {
      left[i][half] = words_once<kMayEnd>(rows.w[half], k, depth);
    }
    for (int t = 0; t < kTiles; ++t) right[i][t] = words_at<kMayEnd>(rows.x[t], k, depth);
  }
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const uint4 upper = left[i][0], lower = left[i][1];
    const std::uint32_t a[4] = {upper.x, lower.x, upper.y, lower.y};
    const std::uint32_t b[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint4 other = right[i][t];
      cuda_attention::multiply_add<T>(sums[t], a, other.x, other.y);
      cuda_attention::multiply_add<T>(sums[t], b, other.z, other.w);
    }
  }
}

// What the warp's share of the inner dim adds to each sum. Neighbouring warps read neighbours. All
// lanes of a warp take the same steps, as its products need them.
template <int kWarps, int kTiles, class T>
__device__ void add_products(float (&sums)[kTiles][4], const Operands<T>& in) {
  constexpr int kStride = kWarps * kDepth;
  const LaneRows<kTiles, T> rows(in);
  const int in_step = static_cast<int>(threadIdx.x) % 4 * 8;
  int first = static_cast<int>(threadIdx.x) / kWarp * kDepth;
  for (; first + (kAhead - 1) * kStride + kDepth <= in.depth; first += kAhead * kStride) {
    add_steps<kWarps, false>(sums, rows, first + in_step, in.depth);
  }
  if (first < in.depth) add_steps<kWarps, true>(sums, rows, first + in_step, in.depth);
}

// By a block of kWarps warps: store(row, column, sum) for every element, neighbouring columns by
// neighbouring threads.
template <int kWarps, int kTiles, class T, class Store>
__device__ void multiply(const Operands<T>& in, const Store& store) {
  __shared__ float4 parts[kWarps][kTiles][kWarp];
  float sums[kTiles][4] = {};
  add_products<kWarps>(sums, in);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    parts[threadIdx.x / kWarp][t][threadIdx.x % kWarp] = {sums[t][0], sums[t][1], sums[t][2],
                                                          sums[t][3]};
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTiles * kTileRows * kColumns; i += kWarps * kWarp) {
    const int column = i % kColumns, row = i / kColumns;
    if (row >= in.rows || column >= in.columns) continue;
    // Where the tensor cores leave it: the lane, and which of its four.
    const int lane = column % 8 * 4 + row % kTileRows / 2, item = column / 8 * 2 + row % 2;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      sum += reinterpret_cast<const float*>(&parts[warp][row / kTileRows][lane])[item];
    }
    store(row, column, sum);
  }
}

}  // namespace bev::cuda::few_rows
