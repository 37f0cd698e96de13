// Tile order of the persistent grouped GEMM kernels.
#pragma once

#include <cstdint>

#include "backend/cuda/moe/moe_launchers.h"
#include "base/divide.h"

namespace bev::cuda::wgmma {

constexpr int kTileRows = 128, kTileColumns = 256;

struct Walk {
  const std::int32_t* offsets;  // [experts + 1]; null: one expert has all rows
  int experts;
  int rows;  // of all experts; for kWeight, rows of one expert's matrix
  int column_tiles;
  int depth;  // K; for kWeight the rows of the expert instead
};

struct WalkTile {
  int expert;        // `experts`: rows past the last offset, with depth 0
  int row, row_end;  // of the tile; of the expert. For kWeight within the expert's matrix
  int column;
  int depth, end;      // length of K; for kWeight, `end` is where the expert's rows end
  int shares_columns;  // true if both tiles of the pair have the same columns

  // The second tile of a pair may be missing.
  __device__ bool missing() const { return row >= row_end; }
};

// Tiles come in pairs, one above the other; if an expert has an odd number of tile rows, the last
// row is paired side by side. Pairs are numbered expert by expert. Within an expert, bands of kBand
// pairs sweep the columns, so that tiles in flight share rows and columns in L2.
template <GroupedGemm kGemm>
class Walker {
 public:
  __device__ explicit Walker(const Walk& walk)
      : walk_(walk), end_(walk.offsets != nullptr ? walk.offsets[0] : 0) {
    enter(0);
  }

  // First tile of pair `index`, which must not decrease between calls; returns false after the
  // last.
  __device__ bool find(int index, WalkTile& tile) {
    while (index - before_ >= pairs()) {
      before_ += pairs();
      if (expert_ == last()) return false;
      enter(expert_ + 1);
    }
    index -= before_;
    const int high_pairs = row_tiles() / 2, in_bands = high_pairs * walk_.column_tiles;
    int row;
    tile.shares_columns = index < in_bands;
    if (tile.shares_columns) {
      constexpr int kBand = 8;
      const int band = index / (kBand * walk_.column_tiles);
      const int within = index % (kBand * walk_.column_tiles);
      const int high = min(kBand, high_pairs - band * kBand);
      row = (band * kBand + within % high) * 2 * kTileRows;
      tile.column = within / high * kTileColumns;
    } else {
      row = high_pairs * 2 * kTileRows;
      tile.column = (index - in_bands) * 2 * kTileColumns;
    }
    tile.expert = expert_;
    tile.end = end_;
    if constexpr (kGemm == GroupedGemm::kWgrad) {
      tile.row = row;
      tile.row_end = walk_.rows;
      tile.depth = end_ - begin_;
    } else {
      tile.row = begin_ + row;
      tile.row_end = end_;
      tile.depth = expert_ < walk_.experts ? walk_.depth : 0;
    }
    return true;
  }

  // Turns the first tile of a pair into its second.
  __device__ void advance_in_pair(WalkTile& tile) const {
    if (tile.shares_columns) {
      tile.row += kTileRows;
    } else if (tile.column + kTileColumns < walk_.column_tiles * kTileColumns) {
      tile.column += kTileColumns;
    } else {
      tile.row = tile.row_end;
    }
  }

 private:
  // Rows past the last offset come after the last expert.
  __device__ int last() const {
    return kGemm == GroupedGemm::kWgrad ? walk_.experts - 1 : walk_.experts;
  }
  __device__ void enter(int expert) {
    expert_ = expert;
    begin_ = end_;
    const bool counted = expert < walk_.experts && walk_.offsets != nullptr;
    end_ = counted ? walk_.offsets[expert + 1] : walk_.rows;
  }
  __device__ int row_tiles() const {
    const int rows = kGemm == GroupedGemm::kWgrad ? walk_.rows : end_ - begin_;
    return ceil_div(rows, kTileRows);
  }
  __device__ int pairs() const {
    return row_tiles() / 2 * walk_.column_tiles + row_tiles() % 2 * ceil_div(walk_.column_tiles, 2);
  }

  const Walk& walk_;
  int before_ = 0;  // pairs of earlier experts
  int end_, begin_ = 0, expert_ = 0;
};

}  // namespace bev::cuda::wgmma
