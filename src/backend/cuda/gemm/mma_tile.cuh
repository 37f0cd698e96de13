// Tile of a GEMM with mma.sync (sm_80 and later) on 16-bit operands. A block computes [128, 128]
// with eight warps of 64 x 32 each; operands go through shared memory in steps of 32 along K with a
// cp.async pipeline of kStages stages. A sum takes K in ascending order, 16 at a time.
#pragma once

#include "backend/cuda/attention/attention_tiles.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "base/divide.h"

namespace bev::cuda::mma_tile {

using cuda_attention::commit_copies;
using cuda_attention::copy_16;
using cuda_attention::load_matrices_transposed;
using cuda_attention::multiply_add;
using cuda_attention::Sums;
using cuda_attention::Tile;
using cuda_attention::wait_copies;

constexpr int kSize = 128, kDepth = 32, kStages = 3, kBlockThreads = 256;
constexpr int kM = 4, kN = 4;  // register tile of a warp: 16 kM x 8 kN

// One operand of a tile: `outer` runs over M or N, `inner` over K. Element (outer, inner) is
// data[outer * stride + inner], or data[inner * stride + outer] with kInnerRows. Out of range
// elements read as zero.
template <class T>
struct Operand {
  const T* data;
  std::int64_t stride;
  int outer_limit;
};

template <bool kInnerRows>
using OperandTile = Tile<kInnerRows ? kSize : kDepth>;
template <bool kInnerRows>
constexpr int kTileBytes = OperandTile<kInnerRows>::bytes(kInnerRows ? kDepth : kSize);

// Starts the cp.async copies of inner [first, first + kDepth).
template <bool kInnerRows, class T>
__device__ void copy_operand(OperandTile<kInnerRows> tile, const Operand<T>& from, int first,
                             int inner_limit) {
  constexpr int kColumns = kInnerRows ? kSize : kDepth, kRows = kInnerRows ? kDepth : kSize;
  constexpr int kChunks = kColumns / 8;
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kBlockThreads; ++i) {
    const int chunk = i * kBlockThreads + static_cast<int>(threadIdx.x);
    const int row = chunk / kChunks, column = chunk % kChunks * 8;
    const int outer = kInnerRows ? column : row, inner = first + (kInnerRows ? row : column);
    const bool valid = outer < from.outer_limit && inner < inner_limit;
    const std::int64_t at = kInnerRows ? inner * from.stride + outer : outer * from.stride + inner;
    copy_16(tile.at(row, column), from.data + (valid ? at : 0), valid);
  }
}

// Left mma operand [16, 16] at (row, inner).
template <bool kInnerRows>
__device__ void load_left(std::uint32_t (&x)[4], OperandTile<kInnerRows> tile, int row, int inner) {
  if constexpr (kInnerRows) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    load_matrices_transposed(x, tile.at(inner + lane / 16 * 8 + lane % 8, row + lane / 8 % 2 * 8));
  } else {
    tile.load_left(x, row, inner);
  }
}
// Two right mma operands [16, 8] with columns [column, column + 16).
template <bool kInnerRows>
__device__ void load_right(std::uint32_t (&x)[4], OperandTile<kInnerRows> tile, int column,
                           int inner) {
  if constexpr (kInnerRows) {
    tile.load_right_transposed(x, inner, column);
  } else {
    tile.load_right(x, column, inner);
  }
}

template <bool kLeftInnerRows, bool kRightInnerRows, class T>
__device__ void multiply_step(Sums<kM, kN>& sums, OperandTile<kLeftInnerRows> left,
                              OperandTile<kRightInnerRows> right, int row, int column) {
#pragma unroll
  for (int inner = 0; inner < kDepth; inner += 16) {
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_left<kLeftInnerRows>(a[m], left, row + 16 * m, inner);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t b[4];
      load_right<kRightInnerRows>(b, right, column + 8 * n, inner);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<T>(sums.at[m][n], a[m], b[0], b[1]);
        multiply_add<T>(sums.at[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Position of the warp's register tile in the tile.
__device__ inline int warp_row() { return static_cast<int>(threadIdx.x / kWarp) % 2 * (16 * kM); }
__device__ inline int warp_column() { return static_cast<int>(threadIdx.x / kWarp) / 2 * (8 * kN); }

template <bool kLeftInnerRows, bool kRightInnerRows>
constexpr int kStageBytes = kTileBytes<kLeftInnerRows> + kTileBytes<kRightInnerRows>;

// sums = left right^T over inner [0, depth).
template <bool kLeftInnerRows, bool kRightInnerRows, class T>
__device__ void multiply_tile(Sums<kM, kN>& sums, const Operand<T>& left, const Operand<T>& right,
                              int depth) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  constexpr int kBytes = kStageBytes<kLeftInnerRows, kRightInnerRows>;
  const int steps = ceil_div(depth, kDepth);
  auto left_at = [&](int step) {
    return OperandTile<kLeftInnerRows>{memory + step % kStages * kBytes};
  };
  auto right_at = [&](int step) {
    return OperandTile<kRightInnerRows>{memory + step % kStages * kBytes +
                                        kTileBytes<kLeftInnerRows>};
  };
  auto copy = [&](int step) {
    if (step < steps) {
      copy_operand<kLeftInnerRows>(left_at(step), left, step * kDepth, depth);
      copy_operand<kRightInnerRows>(right_at(step), right, step * kDepth, depth);
    }
    commit_copies();  // maybe empty: wait_copies counts groups
  };
  sums.clear();
  for (int step = 0; step < kStages - 1; ++step) copy(step);
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();
    copy(step + kStages - 1);
    multiply_step<kLeftInnerRows, kRightInnerRows, T>(sums, left_at(step), right_at(step),
                                                      warp_row(), warp_column());
  }
  wait_copies<0>();
}

// Calls body(row, column, first, second) for the lane's pairs of adjacent columns.
template <class Body>
__device__ void for_pairs(const Sums<kM, kN>& sums, const Body& body) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        body(warp_row() + 16 * m + 8 * half + lane / 4, warp_column() + 8 * n + 2 * (lane % 4),
             sums.at[m][n][2 * half], sums.at[m][n][2 * half + 1]);
      }
    }
  }
}

}  // namespace bev::cuda::mma_tile
