// The run of a block, the rows of its keys (contiguous or paged), and the splits of its keys.
#pragma once

#include "backend/cuda/attention/attention_masks.cuh"

namespace bev::cuda_attention {

// Tiles of keys begin at multiples of this in every kernel with tensor cores, so that a sum of one
// query has the same order whatever its neighbours are. Paged blocks of this size are one tile.
constexpr int kTileKeys = 64;

struct CurrentRun {
  AttentionRun run;
  int index;  // in the call
};

// The run in place `slot` of a launch.
__device__ inline CurrentRun current_run(const LaunchRuns& runs, int slot) {
  if (runs.device != nullptr) {
    const int index = runs.is_range ? runs.first + slot : runs.indices[slot];
    return {runs.device[index], index};
  }
  const ListedRun& at = runs.at[slot];
  return {{at.q_begin, at.q_count, at.k_begin, at.k_count, at.offset, at.key_position}, at.index};
}

// Rows of the keys of a run.
struct KeyRows {
  const std::int32_t* blocks;  // null: contiguous
  std::int64_t begin;
  int shift;

  __device__ std::int64_t operator()(int key) const {
    if (blocks == nullptr) return begin + key;
    return (std::int64_t{__ldg(blocks + (key >> shift))} << shift) + (key & ((1 << shift) - 1));
  }
  // Rows of a tile that begins at a multiple of kTileKeys. One look-up serves it if blocks are as
  // large.
  struct Tile {
    const KeyRows& rows;
    int key;
    bool together;
    std::int64_t first;
    __device__ std::int64_t operator()(int at) const {
      return together ? first + at : rows(key + at);
    }
  };
  __device__ Tile tile(int key) const {
    const bool together = blocks == nullptr || (1 << shift) >= kTileKeys;
    return {*this, key, together, together ? (*this)(key) : 0};
  }
};
__device__ inline KeyRows key_rows(const ForwardParams& params, const CurrentRun& current) {
  const BlockTables& tables = params.tables;
  return {tables.table == nullptr ? nullptr : tables.table + current.index * tables.stride,
          current.run.k_begin, tables.shift};
}

}  // namespace bev::cuda_attention
