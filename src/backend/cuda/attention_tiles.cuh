// What attention's tensor core kernels share: tiles in shared memory, their products, masks and
// dropout. A block holds a tile of rows (queries, or keys for dk and dv) and meets the other side
// tile by tile; each warp owns 16 * kM rows.
#pragma once

#include "backend/cuda/attention_masks.cuh"
#include "backend/cuda/attention_mma.cuh"

namespace bev::cuda_attention {

// Rows of kColumns 16-bit numbers in shared memory. The padding puts the same column of 8
// neighbouring rows into different banks.
template <int kColumns>
struct Tile {
  static constexpr int kStride = (kColumns + 8) * 2;  // bytes
  std::uint8_t* memory;

  static constexpr int bytes(int rows) { return rows * kStride; }
  __device__ std::uint32_t at(int row, int column) const {
    return shared_address(memory) + static_cast<std::uint32_t>(row * kStride + column * 2);
  }

  // The left operand [16, 16] from (row, column) on.
  __device__ void load_left(std::uint32_t (&x)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    load_matrices(x, at(row + lane % 16, column + lane / 16 * 8));
  }
  // Two right operands [16, 8]: those whose columns are the tile's rows [row, row + 8) and the 8
  // after them; x[0], x[1] are the first.
  __device__ void load_right(std::uint32_t (&x)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    load_matrices(x, at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
  }
  // The same with the tile's columns as the operands' columns.
  __device__ void load_right_transposed(std::uint32_t (&x)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    load_matrices_transposed(x, at(row + lane % 16, column + lane / 16 * 8));
  }
};

// A sum [16 * kM, 8 * kN] of a warp.
template <int kM, int kN>
struct Sums {
  float at[kM][kN][4];

  __device__ void clear() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) at[m][n][i] = 0;
      }
    }
  }
  // Calls body(value, m, n, i, row, column) for the lane's elements; row and column are within the
  // warp's part.
  template <class Body>
  __device__ void for_each(const Body& body) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          body(at[m][n][i], m, n, i, 16 * m + 8 * (i / 2) + lane / 4,
               8 * n + 2 * (lane % 4) + i % 2);
        }
      }
    }
  }
};

// sum = rows [row, row + 16 kM) of left times the first 8 kN rows of right.
template <class T, int kColumns, int kM, int kN>
__device__ void multiply_rows(Sums<kM, kN>& sum, Tile<kColumns> left, int row,
                              Tile<kColumns> right) {
  sum.clear();
#pragma unroll
  for (int column = 0; column < kColumns; column += 16) {
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) left.load_left(a[m], row + 16 * m, column);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t b[4];
      right.load_right(b, 8 * n, column);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<T>(sum.at[m][n], a[m], b[0], b[1]);
        multiply_add<T>(sum.at[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// sum += weights (rounded to T) [16 kM, 8 kK] times rows [0, 8 kK), columns [column, column + 8 kN)
// of right.
template <class T, int kColumns, int kM, int kK, int kN>
__device__ void add_weighted_rows(Sums<kM, kN>& sum, const Sums<kM, kK>& weights,
                                  Tile<kColumns> right, int column) {
#pragma unroll
  for (int k = 0; k < kK; k += 2) {
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&from)[4] = weights.at[m][k + i / 2];
        a[m][i] = pack<T>(from[i % 2 * 2], from[i % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t b[4];
      right.load_right_transposed(b, 8 * k, column + 8 * n);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<T>(sum.at[m][n], a[m], b[0], b[1]);
        multiply_add<T>(sum.at[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Starts copying rows [0, kRows) of a block's tile, row r from source(r); zeros in rows from
// `count` on and columns from head_size on. Eight threads copy 128 bytes of a row.
template <int kRows, int kThreads, int kColumns, class Source>
__device__ void copy_tile(Tile<kColumns> tile, int count, int head_size, const Source& source) {
  const int thread = static_cast<int>(threadIdx.x), first = thread % 8 * 8;
#pragma unroll
  for (int step = 0; step < kRows; step += kThreads / 8) {
    const int row = step + thread / 8;
    const auto* from = source(row < count ? row : 0);
#pragma unroll
    for (int step_column = 0; step_column < kColumns; step_column += 64) {
      const int column = step_column + first;
      if (kColumns % 64 != 0 && column >= kColumns) break;
      const bool valid = row < count && column < head_size;
      copy_16(tile.at(row, column), from + (valid ? column : 0), valid);
    }
  }
}

// Writes a warp's sums times row_factor(m, half) to rows of T, by way of the warp's own part of a
// tile: rows [row, ...), columns [column, ...) of it. Row r goes to target(r), which is null where
// there is none.
template <class T, int kColumns, int kM, int kN, class Factor, class Target>
__device__ void store_sums(Sums<kM, kN>& sum, Tile<kColumns> tile, int row, int column,
                           int head_size, const Factor& factor, const Target& target) {
  constexpr int kStride = Tile<kColumns>::kStride;
  std::uint8_t* corner = tile.memory + row * kStride + column * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int lane = static_cast<int>(threadIdx.x % 32);
      std::uint8_t* to = corner + (16 * m + 8 * half + lane / 4) * kStride + lane % 4 * 4;
      const float scale = factor(m, half);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        *reinterpret_cast<std::uint32_t*>(to + 16 * n) =
            pack<T>(sum.at[m][n][2 * half] * scale, sum.at[m][n][2 * half + 1] * scale);
      }
    }
  }
  __syncwarp();
  for (int index = static_cast<int>(threadIdx.x % 32); index < 16 * kM * kN; index += 32) {
    const int r = index / kN, c = index % kN * 8;
    T* to = target(row + r);
    if (to != nullptr && column + c < head_size) {
      *reinterpret_cast<uint4*>(to + column + c) =
          *reinterpret_cast<const uint4*>(corner + r * kStride + c * 2);
    }
  }
}

// 1 - 2 / (1 + e^2x): the error is absolute, as that of a score may be.
__device__ inline float fast_tanh(float x) {
  return 1 - __fdividef(2.0f, 1 + fast_exp2(2 * kLog2e * x));
}
template <int kM, int kN>
__device__ void cap_scores(const Shape& shape, Sums<kM, kN>& scores) {
  const float factor = shape.scale / shape.softcap;
  scores.for_each([&](float& x, int, int, int, int, int) { x = fast_tanh(x * factor); });
}

}  // namespace bev::cuda_attention
