// Epilogue of the Hopper grouped GEMM: each warp adds bias or beta * out to its 16 rows of a tile
// and writes them with TMA stores.
#pragma once

#include <type_traits>

#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/gemm/grouped_scheduler.cuh"
#include "backend/cuda/gemm/hopper_ptx.cuh"
#include "backend/cuda/gemm/tensor_maps.h"
#include "backend/cuda/moe/moe_launchers.h"
#include "base/divide.h"

namespace bev::cuda::wgmma {

// TMA stores that each warp may have in flight.
constexpr int kWarpRows = 16, kOutBoxes = 2, kOutBoxBytes = kWarpRows * kBoxRowBytes;
constexpr int kOutBytes = kOutBoxes * kOutBoxBytes;

// Output of a grouped GEMM: out [., C], the matrices or rows of all experts stacked.
template <class T, class Out>
struct Work {
  Walk walk;
  const Out* out;  // read for beta
  const T* bias;   // null: none
  int columns;     // C
  float beta;
  int* tickets = nullptr;     // work counter: pairs taken beyond the first one of each cluster
  double* squares = nullptr;  // partial sums of squares, at square_place; null: not wanted
};

// For wgrad, each group of kWarpRows rows in each tile has a slot for its sum of squares, so that
// the sum has a fixed order.
__host__ __device__ inline int row_groups(const Walk& walk) {
  return ceil_div(walk.rows, kWarpRows);
}
inline std::int64_t square_places(const Walk& walk) {
  return std::int64_t{walk.experts} * row_groups(walk) * walk.column_tiles;
}
__device__ inline std::int64_t square_place(const Walk& walk, const WalkTile& tile, int row) {
  return (std::int64_t{tile.expert} * row_groups(walk) + row / kWarpRows) * walk.column_tiles +
         tile.column / kTileColumns;
}

// Calls body(index of a sum, row, column) for the lane's pairs of adjacent columns, within the
// first `rows` rows of the warp and the first `columns` columns of the tile.
template <class Body>
__device__ void for_pairs(int rows, int columns, const Body& body) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int block = 0; block < kTileColumns / 8; ++block) {
    if (8 * block >= columns) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      if (row < rows) body(4 * block + 2 * half, row, 8 * block + 2 * (lane % 4));
    }
  }
}

// Results of one warp.
template <GroupedGemm kGemm, class T, class Out>
class Results {
 public:
  // boxes: kOutBytes of shared memory.
  __device__ Results(const Work<T, Out>& work, const CUtensorMap& map, std::uint8_t* boxes)
      : work_(work), map_(map), boxes_(boxes) {}

  // Starts the TMA stores of the warp's rows, which begin at `row`. Modifies the sums.
  __device__ void store(hopper::WideSums& sums, const WalkTile& tile, int row) {
    if (row >= tile.row_end) return;
    add_terms(sums, tile, row);
    if (kGemm == GroupedGemm::kWgrad && work_.squares != nullptr) {
      store_squares(sums, tile, row);
    }
    constexpr int kColumns = kBoxRowBytes / static_cast<int>(sizeof(Out));
#pragma unroll
    for (int column = 0; column < kTileColumns; column += kColumns) {
      if (tile.column + column >= work_.columns) break;
      // A lane holds a pair of sums for each 4 columns of 16 rows.
      tma_store(sums.at + column / 2, tile, row, tile.column + column);
    }
  }
  // Call after the last store.
  __device__ void finish() { hopper::wait_tma_stores_read<0>(); }

 private:
  // Adds the bias (forward) or beta * out (wgrad).
  __device__ void add_terms(hopper::WideSums& sums, const WalkTile& tile, int row) {
    const int columns = work_.columns - tile.column, rows = tile.row_end - row;
    if constexpr (kGemm == GroupedGemm::kForward) {
      if (work_.bias == nullptr || tile.expert == work_.walk.experts) return;
      const T* bias =
          work_.bias + static_cast<std::int64_t>(tile.expert) * work_.columns + tile.column;
      for_pairs(rows, columns, [&](int at, int, int column) {
        sums.at[at] += cuda_attention::widen(bias[column]);
        sums.at[at + 1] += cuda_attention::widen(bias[column + 1]);
      });
    }
    if constexpr (kGemm == GroupedGemm::kWgrad) {
      if (work_.beta == 0) return;
      const std::int64_t first = static_cast<std::int64_t>(tile.expert) * work_.walk.rows + row;
      const Out* old = work_.out + first * work_.columns + tile.column;
      for_pairs(rows, columns, [&](int at, int r, int column) {
        const Out* pair = old + static_cast<std::int64_t>(r) * work_.columns + column;
        sums.at[at] += work_.beta * cuda_attention::widen(pair[0]);
        sums.at[at + 1] += work_.beta * cuda_attention::widen(pair[1]);
      });
    }
  }

  // Squares of the rounded results. Sums in f32, since a lane has few terms, and again in f64 if
  // that overflows.
  __device__ void store_squares(const hopper::WideSums& sums, const WalkTile& tile, int row) {
    const auto lanes_sum = [&](auto sum) {
      for_pairs(tile.row_end - row, work_.columns - tile.column, [&](int at, int, int) {
#pragma unroll
        for (int i = at; i < at + 2; ++i) {
          const decltype(sum) x = cuda_attention::widen(cuda_attention::narrow<Out>(sums.at[i]));
          sum += x * x;
        }
      });
      return sum;
    };
    const float quick = lanes_sum(0.0f);
    const double sum = reduce_warp<Sum>(isfinite(quick) ? quick : lanes_sum(0.0));
    if (threadIdx.x % kWarp == 0) work_.squares[square_place(work_.walk, tile, row)] = sum;
  }

  __device__ void tma_store(const float* sums, const WalkTile& tile, int row, int column) {
    const bool speaks = threadIdx.x % kWarp == 0;
    std::uint8_t* box = boxes_ + slot_ * kOutBoxBytes;
    if (speaks) hopper::wait_tma_stores_read<kOutBoxes - 1>();
    __syncwarp();
    fill_box(box, sums);
    hopper::fence_proxy_async();
    __syncwarp();
    if (speaks) {
      if constexpr (kGemm == GroupedGemm::kWgrad) {
        hopper::tma_store(box, map_, column, row, tile.expert);
      } else {
        hopper::tma_store(box, map_, column, kRagged - (tile.row_end - row), tile.row_end, kRagged);
      }
    }
    slot_ = slot_ + 1 == kOutBoxes ? 0 : slot_ + 1;
  }

  // Writes the sums of one box to shared memory in the swizzled layout.
  __device__ static void fill_box(std::uint8_t* box, const float* sums) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    auto word_at = [&](int row, int word) {
      return box + row * kBoxRowBytes + (word ^ row % 8) * 16;
    };
    if constexpr (std::is_same_v<Out, float>) {
#pragma unroll
      for (int i = 0; i < 16; i += 2) {
        const int row = lane / 4 + i / 2 % 2 * 8, word = i / 4 * 2 + lane % 4 / 2;
        *reinterpret_cast<float2*>(word_at(row, word) + lane % 2 * 8) = {sums[i], sums[i + 1]};
      }
    } else {
#pragma unroll
      for (int i = 0; i < 32; i += 8) {
        std::uint32_t words[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          words[k] = cuda_attention::pack<Out>(sums[i + 2 * k], sums[i + 2 * k + 1]);
        }
        hopper::store_matrices(hopper::shared_address(word_at(lane % 16, i / 4 + lane / 16)),
                               words);
      }
    }
  }

  const Work<T, Out>& work_;
  const CUtensorMap& map_;
  std::uint8_t* boxes_;
  int slot_ = 0;
};

}  // namespace bev::cuda::wgmma
