// Skinny GEMM on tensor cores, y = x w^T in 16 bits with few rows of x: memory bound by reading w.
// A block computes kColumns columns for up to 8 kTiles rows, with w as the left operand of the mma;
// its warps split K (split-K within the block) and reduce their sums in shared memory.
//
// A lane loads 16 bytes of a row (8 consecutive k), while two m16n8k16 mma expect 4 pairs that are
// apart. Both operands are permuted along K in the same way, which leaves the sum unchanged.
#pragma once

#include "backend/cuda/attention/attention_mma.cuh"
#include "backend/cuda/device/reduce.cuh"

namespace bev::cuda::skinny_tile {

constexpr int kColumns = 16;  // per block
constexpr int kDepth = 32;    // of K per step of a warp
constexpr int kAhead = 4;     // steps whose operands are prefetched
constexpr int kTileRows = 8;

// Rows of x and w must be 16-byte aligned.
template <class T>
struct Operands {
  const T *x, *w;  // [rows, depth], [columns, depth] starting at the first column of the block
  int rows, columns, depth;
};

// 8 elements at `k`; zeros past the end of the row if kMayEnd.
template <bool kMayEnd, class T>
__device__ uint4 words_at(const T* row, int k, int depth) {
  return kMayEnd && k >= depth ? uint4{} : *reinterpret_cast<const uint4*>(row + k);
}
// The same with a streaming load (evict first), for data that is read once.
template <bool kMayEnd, class T>
__device__ uint4 words_once(const T* row, int k, int depth) {
  return kMayEnd && k >= depth ? uint4{} : __ldcs(reinterpret_cast<const uint4*>(row + k));
}

// Row pointers of a lane. Past the end they point to the last row, and the sums are not used.
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

// kAhead steps of a warp, kWarps * kDepth apart; all loads are issued before the first mma.
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

// Accumulates the warp's share of K; neighbouring warps read neighbouring words. All lanes of a
// warp take the same steps, because mma is warp-wide.
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

// Called by a block of kWarps warps. Calls store(row, column, sum) for every element; neighbouring
// threads get neighbouring columns, so stores are coalesced.
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
    // Position in the mma accumulator layout: the lane, and which of its four sums.
    const int lane = column % 8 * 4 + row % kTileRows / 2, item = column / 8 * 2 + row % 2;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      sum += reinterpret_cast<const float*>(&parts[warp][row / kTileRows][lane])[item];
    }
    store(row, column, sum);
  }
}

}  // namespace bev::cuda::skinny_tile
