// In which order the tiles of grouped products are made, by kernels whose blocks make many of them.
#pragma once

#include <cstdint>

#include "backend/cuda/moe_parts.h"

namespace bev::cuda::wgmma {

constexpr int kTileRows = 128, kTileColumns = 256;

struct Walk {
  const std::int32_t* offsets;  // [experts + 1]
  int experts;
  int rows;  // of all experts, or for kWeight of an expert's matrix
  int column_tiles;
  int depth;  // of the inner dim; for kWeight it is an expert's rows
};

struct WalkTile {
  int expert;        // `experts`: rows of nobody, whose depth is 0
  int row, row_end;  // where it and its expert's rows end; for kWeight within the expert's matrix
  int column;
  int depth, end;  // of the inner dim; where it ends, for kWeight
};

// Tiles are counted by expert. Of an expert, bands of kBand tiles of rows go through the columns,
// so that tiles which are made at the same time share rows and columns.
template <GroupedProduct kProduct>
class Walker {
 public:
  __device__ explicit Walker(const Walk& walk) : walk_(walk), end_(walk.offsets[0]) { enter(0); }

  // Tile `index`, which must not be less than before; false after the last.
  __device__ bool find(int index, WalkTile& tile) {
    while (index - before_ >= tiles()) {
      before_ += tiles();
      if (expert_ == last()) return false;
      enter(expert_ + 1);
    }
    index -= before_;
    constexpr int kBand = 16;
    const int band = index / (kBand * walk_.column_tiles);
    const int within = index % (kBand * walk_.column_tiles);
    const int high = min(kBand, row_tiles() - band * kBand);
    const int row = (band * kBand + within % high) * kTileRows;
    tile.expert = expert_;
    tile.column = within / high * kTileColumns;
    tile.end = end_;
    if constexpr (kProduct == GroupedProduct::kWeight) {
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

 private:
  // Rows of nobody come after the last expert's.
  __device__ int last() const {
    return kProduct == GroupedProduct::kWeight ? walk_.experts - 1 : walk_.experts;
  }
  __device__ void enter(int expert) {
    expert_ = expert;
    begin_ = end_;
    end_ = expert < walk_.experts ? walk_.offsets[expert + 1] : walk_.rows;
  }
  __device__ int row_tiles() const {
    const int rows = kProduct == GroupedProduct::kWeight ? walk_.rows : end_ - begin_;
    return (rows + kTileRows - 1) / kTileRows;
  }
  __device__ int tiles() const { return row_tiles() * walk_.column_tiles; }

  const Walk& walk_;
  int before_ = 0;  // tiles of earlier experts
  int end_, begin_ = 0, expert_ = 0;
};

}  // namespace bev::cuda::wgmma
