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

// 8 elements from `k` on; zeros where there is no such row or the row has ended.
template <class T>
__device__ uint4 words_at(const T* row, bool valid, int k, int depth) {
  return valid && k < depth ? *reinterpret_cast<const uint4*>(row + k) : uint4{};
}
// The same of what nobody reads again.
template <class T>
__device__ uint4 words_once(const T* row, bool valid, int k, int depth) {
  return valid && k < depth ? __ldcs(reinterpret_cast<const uint4*>(row + k)) : uint4{};
}

// What the warp's share of the inner dim adds to each sum.
template <int kWarps, int kTiles, class T>
__device__ void add_products(float (&sums)[kTiles][4], const Operands<T>& in) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = threadIdx.x / kWarp;
  const int row = lane / 4;
  const T* x = in.x + static_cast<std::int64_t>(row) * in.depth;
  const T* w = in.w + static_cast<std::int64_t>(row) * in.depth;
  const std::int64_t half = static_cast<std::int64_t>(8) * in.depth;
  // Neighbouring warps read neighbours. All lanes of a warp take the same steps, as its products
  // need them.
  for (int first = warp * kDepth; first < in.depth; first += kAhead * kWarps * kDepth) {
    uint4 left[kAhead][2], right[kAhead][kTiles];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int k = first + i * kWarps * kDepth + lane % 4 * 8;
      left[i][0] = words_once(w, row < in.columns, k, in.depth);
      left[i][1] = words_once(w + half, row + 8 < in.columns, k, in.depth);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        right[i][t] = words_at(x + t * half, row + t * kTileRows < in.rows, k, in.depth);
      }
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
