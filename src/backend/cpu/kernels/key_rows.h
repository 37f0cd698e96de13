// Where the keys of a run lie in k and v: in adjacent rows, or in the blocks of a paged cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/kernels/attention_tiles.h"

namespace bev::cpu::BEV_CPU_LEVEL {

// The part of a tile of keys that is loaded: keys [key + first, key + count).
struct KeyTile {
  int key = 0, first = 0, count = 0;
};

class KeyRows {
 public:
  KeyRows(const KeyPages& pages, std::int64_t run, std::int64_t k_begin) : begin_(k_begin) {
    if (pages.table == nullptr) return;
    table_ = pages.table + run * pages.stride;
    while (std::int64_t{1} << shift_ < pages.block_tokens) ++shift_;
  }

  std::int64_t row(std::int64_t key) const {
    if (table_ == nullptr) return begin_ + key;
    const std::int64_t in_block = key & ((std::int64_t{1} << shift_) - 1);
    return (std::int64_t{table_[key >> shift_]} << shift_) + in_block;
  }

  // How many of the `count` keys from `key` on are in adjacent rows of one block.
  int adjacent(int key, int count) const {
    if (table_ == nullptr) return count;
    const std::int64_t size = std::int64_t{1} << shift_;
    return static_cast<int>(std::min<std::int64_t>(count, size - (key & (size - 1))));
  }

  // Loads rows of D elements into a padded tile; rows before the first key, padding columns and
  // rows are 0.
  template <class T, class A>
  void load(const T* source, std::int64_t stride, const KeyTile& at, int head_size, A* tile) const {
    const int padded = padded_head(head_size);
    std::fill_n(tile, at.first * padded, A{0});
    for (int i = at.first; i < at.count;) {
      const int count = adjacent(at.key + i, at.count - i);
      load_rows(source + row(at.key + i) * stride, stride, count, head_size, tile + i * padded);
      i += count;
    }
    clear_padding(at.count, head_size, tile);
  }

 private:
  std::int64_t begin_;
  const std::int32_t* table_ = nullptr;  // of the run; null: adjacent rows
  int shift_ = 0;                        // log2 of the tokens of a block
};

}  // namespace bev::cpu::BEV_CPU_LEVEL
