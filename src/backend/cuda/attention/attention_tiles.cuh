// Building blocks of the tensor core attention kernels: shared memory tiles, register tiles and
// their mma, copies, softcap and online softmax. A block holds a tile of rows (queries, or keys for
// dk and dv) and loops over tiles of the other side; each warp owns 16 * kM rows.
#pragma once

#include "backend/cuda/attention/attention_masks.cuh"
#include "backend/cuda/attention/attention_mma.cuh"

namespace bev::cuda_attention {

// Rows of kColumns 16-bit elements in shared memory. The padding puts the same column of 8 adjacent
// rows into different banks.
template <int kColumns>
struct Tile {
  static constexpr int kStride = (kColumns + 8) * 2;  // bytes
  std::uint8_t* memory;

  static constexpr int bytes(int rows) { return rows * kStride; }
  __device__ std::uint32_t at(int row, int column) const {
    return shared_address(memory) + static_cast<std::uint32_t>(row * kStride + column * 2);
  }

  // Left mma operand [16, 16] at (row, column).
  __device__ void load_left(std::uint32_t (&x)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    load_matrices(x, at(row + lane % 16, column + lane / 16 * 8));
  }
  // Two right mma operands [16, 8] whose columns are rows [row, row + 8) of the tile (x[0], x[1])
  // and the 8 rows after them (x[2], x[3]).
  __device__ void load_right(std::uint32_t (&x)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    load_matrices(x, at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
  }
  // Same, with the columns of the tile as columns of the operands.
  __device__ void load_right_transposed(std::uint32_t (&x)[4], int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    load_matrices_transposed(x, at(row + lane % 16, column + lane / 16 * 8));
  }
};

// Register tile [16 * kM, 8 * kN] of a warp (mma accumulators).
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
  // Calls body(value, m, n, i, row, column) for the elements of the lane; row and column are
  // relative to the register tile.
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

// sum = rows [row, row + 16 kM) of left times the transpose of the first 8 kN rows of right.
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

// sum += weights [16 kM, 8 kK], rounded to T, times rows [0, 8 kK), columns [column, column + 8 kN)
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

// Starts cp.async copies of rows [0, kRows) of a tile, row r from source(r); zero fill for rows
// outside of `rows` and columns >= head_size. source is only called for rows in `rows`, which is
// not empty, and for its begin. Eight threads copy 128 bytes of a row (coalesced).
template <int kRows, int kThreads, int kColumns, class Source>
__device__ void copy_rows(Tile<kColumns> tile, Range rows, int head_size, const Source& source) {
  const int thread = static_cast<int>(threadIdx.x), first = thread % 8 * 8;
#pragma unroll
  for (int step = 0; step < kRows; step += kThreads / 8) {
    const int row = step + thread / 8;
    const bool inside = row >= rows.begin && row < rows.end;
    const auto* from = source(inside ? row : rows.begin);
#pragma unroll
    for (int step_column = 0; step_column < kColumns; step_column += 64) {
      const int column = step_column + first;
      if (kColumns % 64 != 0 && column >= kColumns) break;
      const bool valid = inside && column < head_size;
      copy_16(tile.at(row, column), from + (valid ? column : 0), valid);
    }
  }
}
// Same, for rows [0, count).
template <int kRows, int kThreads, int kColumns, class Source>
__device__ void copy_tile(Tile<kColumns> tile, int count, int head_size, const Source& source) {
  copy_rows<kRows, kThreads>(tile, {0, count}, head_size, source);
}

// Writes the sums of a warp, times factor(m, half), to rows of T. They are staged in the warp's own
// part of a shared tile, which begins at (row, column), so that global stores are coalesced. Row r
// goes to target(r); null skips it.
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

// 1 - 2 / (1 + e^2x): has an absolute error bound, which is enough for a score.
__device__ inline float fast_tanh(float x) {
  return 1 - __fdividef(2.0f, 1 + fast_exp2(2 * kLog2e * x));
}
template <int kM, int kN>
__device__ void cap_scores(const Shape& shape, Sums<kM, kN>& scores) {
  const float factor = shape.scale / shape.softcap;
  scores.for_each([&](float& x, int, int, int, int, int) { x = fast_tanh(x * factor); });
}

// Online softmax. The kernels for few and for many queries must give equal bits, so each step of
// its arithmetic is written here once, with fmaf where the compiler could contract or not.
struct SoftmaxStep {
  float shift, alpha;  // scores become 2^(factor * score - shift); sums so far are scaled by alpha

  // alpha is exactly 1 if the maximum stays: a tile that a query does not see changes no bit.
  __device__ SoftmaxStep(float largest, float most, float factor) {
    shift = most == -INFINITY ? 0 : most * factor;
    alpha = most == largest ? 1 : fast_exp2(fmaf(largest, factor, -shift));
  }
  __device__ float operator()(float score, float factor) const {
    return fast_exp2(fmaf(score, factor, -shift));
  }
};
// Four probabilities of the lane, of 16 keys; and those of a tile of 64 keys.
__device__ inline float sum_of_4(float a, float b, float c, float d) { return (a + b) + (c + d); }
// Sum over the four lanes of a row.
__device__ inline float sum_of_row(float sum) {
  sum += __shfl_xor_sync(~0u, sum, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}
__device__ inline float lse_of(float largest, float sum, float factor) {
  return sum == 0 ? -INFINITY : kLn2 * fmaf(largest, factor, log2f(sum));
}
__device__ inline float inverse_of(float sum) { return sum == 0 ? 0 : 1 / sum; }

}  // namespace bev::cuda_attention
