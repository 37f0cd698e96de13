// How the sums of grouped products on Hopper become results: a warp adds what is to be added to its
// 16 rows of a tile, and leaves them to copies by boxes.
#pragma once

#include <type_traits>

#include "backend/cuda/grouped_hopper.cuh"
#include "backend/cuda/grouped_maps.h"
#include "backend/cuda/grouped_walk.cuh"
#include "backend/cuda/moe_parts.h"
#include "backend/cuda/reduce.cuh"

namespace bev::cuda::wgmma {

// Of each warp so many boxes may be on their way out.
constexpr int kWarpRows = 16, kOutBoxes = 2, kOutBoxBytes = kWarpRows * kBoxRowBytes;
constexpr int kOutBytes = kOutBoxes * kOutBoxBytes;

// What a product makes: out [., C], all experts' matrices or rows on top of each other.
template <class T, class Out>
struct Work {
  Walk walk;
  const Out* out;  // as it was, for beta
  const T* bias;   // null: none
  int columns;     // C
  float beta;
  int* tickets = nullptr;     // how many pairs have been taken beyond each cluster's first
  double* squares = nullptr;  // sums of the results' squares, at square_place; null: not wanted
};

// Of kWeight's results each warp's rows in each tile have a place for the sum of their squares.
__host__ __device__ inline int row_groups(const Walk& walk) {
  return (walk.rows + kWarpRows - 1) / kWarpRows;
}
inline std::int64_t square_places(const Walk& walk) {
  return std::int64_t{walk.experts} * row_groups(walk) * walk.column_tiles;
}
__device__ inline std::int64_t square_place(const Walk& walk, const WalkTile& tile, int row) {
  return (std::int64_t{tile.expert} * row_groups(walk) + row / kWarpRows) * walk.column_tiles +
         tile.column / kTileColumns;
}

// body(index of a sum, row, column) for the lane's pairs of neighbouring columns, of the warp's
// first `rows` rows and the tile's first `columns` columns.
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

// The results of a warp.
template <GroupedProduct kProduct, class T, class Out>
class Results {
 public:
  // Boxes: kOutBytes of shared memory.
  __device__ Results(const Work<T, Out>& work, const CUtensorMap& map, std::uint8_t* boxes)
      : work_(work), map_(map), boxes_(boxes) {}

  // Starts the copies of the warp's rows, from `row` on, to where they belong. The sums are
  // changed.
  __device__ void store(hopper::WideSums& sums, const WalkTile& tile, int row) {
    if (row >= tile.row_end) return;
    add_terms(sums, tile, row);
    if (kProduct == GroupedProduct::kWeight && work_.squares != nullptr) {
      store_squares(sums, tile, row);
    }
    constexpr int kColumns = kBoxRowBytes / static_cast<int>(sizeof(Out));
#pragma unroll
    for (int column = 0; column < kTileColumns; column += kColumns) {
      if (tile.column + column >= work_.columns) break;
      // A lane has a pair of sums in each 4 columns of 16 rows.
      store_box(sums.at + column / 2, tile, row, tile.column + column);
    }
  }
  // After the last.
  __device__ void finish() { hopper::wait_boxes_read<0>(); }

 private:
  // Adds the bias, or what was there before.
  __device__ void add_terms(hopper::WideSums& sums, const WalkTile& tile, int row) {
    const int columns = work_.columns - tile.column, rows = tile.row_end - row;
    if constexpr (kProduct == GroupedProduct::kOutput) {
      if (work_.bias == nullptr || tile.expert == work_.walk.experts) return;
      const T* bias =
          work_.bias + static_cast<std::int64_t>(tile.expert) * work_.columns + tile.column;
      for_pairs(rows, columns, [&](int at, int, int column) {
        sums.at[at] += cuda_attention::widen(bias[column]);
        sums.at[at + 1] += cuda_attention::widen(bias[column + 1]);
      });
    }
    if constexpr (kProduct == GroupedProduct::kWeight) {
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

  // Of what results are after rounding. In f32, since a lane has few, unless that overflows.
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

  __device__ void store_box(const float* sums, const WalkTile& tile, int row, int column) {
    const bool speaks = threadIdx.x % kWarp == 0;
    std::uint8_t* box = boxes_ + slot_ * kOutBoxBytes;
    if (speaks) hopper::wait_boxes_read<kOutBoxes - 1>();
    __syncwarp();
    fill_box(box, sums);
    hopper::publish_shared();
    __syncwarp();
    if (speaks) {
      if constexpr (kProduct == GroupedProduct::kWeight) {
        hopper::store_box(box, map_, column, row, tile.expert);
      } else {
        hopper::store_box(box, map_, column, kRagged - (tile.row_end - row), tile.row_end, kRagged);
      }
    }
    slot_ = slot_ + 1 == kOutBoxes ? 0 : slot_ + 1;
  }

  // The sums that make a box, to shared memory as the copies want them.
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
