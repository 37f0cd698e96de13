// Shared by the attention forward and backward: blocks of queries, tiles of keys, masks and
// dropout.
//
// A block holds up to kBlock (query, head) pairs that read one kv head (GQA); they are the vector
// lanes. Scores are stored as [key, lane], so that softmax needs no horizontal sums:
//   scores[key, lane] = keys[key, D] queries[D, lane]
//   out[D, lane] = values[key, D]^T P[key, lane]
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "base/divide.h"
#include "kernels/attention.h"

namespace bev::cpu::BEV_CPU_LEVEL {

void attention_forward(const Stream& stream, const AttentionForwardArgs& args);
// A query's result does not depend on which other queries the call has.
void attention_forward_exact(const Stream& stream, const AttentionForwardArgs& args);
void attention_merge(const Stream& stream, const AttentionMergeArgs& args);
void attention_backward(const Stream& stream, const AttentionBackwardArgs& args);
void add_sinks(const Stream& stream, const AttentionSinkArgs& args);
void sink_terms(const Stream& stream, const SinkTermsArgs& args);

constexpr int kMaxHeadSize = 256;
constexpr int kWideHeadSize = 1024;  // of the forward without dropout
constexpr int kKeys = 64;            // keys in a tile
template <class A>
constexpr int kBlock = 256 / static_cast<int>(sizeof(A));  // lanes in a block

// Elements of a padded row of D elements: whole vectors, whole groups of tile rows.
constexpr int padded_head(int head_size) { return round_up(head_size, 16); }

// Lanes of a block. Lane i sees keys [low[i], high[i]]; lanes from count to width are padding.
template <class A>
struct LaneBlock {
  int count = 0, width = 0;
  std::int32_t low_min = 0, low_max = 0, high_min = 0, high_max = -1;
  std::int32_t key_position = 0;  // of key 0 in its sequence
  std::int64_t row[kBlock<A>];    // row of q
  std::int32_t head[kBlock<A>];   // q head
  std::int32_t low[kBlock<A>], high[kBlock<A>];

  // True if some lane sees some key in [begin, end).
  bool any(int begin, int end) const { return high_max >= begin && low_min < end; }
  // True if every lane sees every key in [begin, end).
  bool all(int begin, int end) const { return low_max <= begin && high_min >= end - 1; }
};

// Calls body(first, count, lane) for keys [key, key + keys): once if every lane sees all of them,
// else for groups of keys, where lanes before `lane` see none of the group. This skips the part of
// a causal tile above the diagonal.
template <class A, class Body>
BEV_INLINE void for_key_groups(const LaneBlock<A>& lanes, int key, int keys, const Body& body) {
  constexpr int kGroup = 16;
  if (lanes.all(key, key + keys)) return body(key, keys, 0);
  for (int first = key, lane = 0; first < key + keys; first += kGroup) {
    // Later lanes are at later key positions.
    while (lane < lanes.count && lanes.high[lane] < first) ++lane;
    if (lane == lanes.count) return;
    body(first, std::min(kGroup, key + keys - first), lane / kVectorLanes<A> * kVectorLanes<A>);
  }
}

// Throws if the shape is not supported by kernels for heads of at most `most` dims.
void check_attention(const AttentionShape& shape, int most);

inline std::int64_t group_size(const AttentionShape& shape) {
  return shape.q_heads / shape.kv_heads;
}
template <class A>
std::int64_t block_count(const AttentionShape& shape, const AttentionRun& run) {
  return ceil_div(run.q_count * group_size(shape), kBlock<A>);
}
// Maximum number of blocks of any run: a grid over (block, run, head) needs no table of runs.
template <class A>
std::int64_t max_block_count(const AttentionShape& shape) {
  std::int64_t blocks = 0;
  for (const AttentionRun& run : shape.runs) {
    blocks = std::max(blocks, block_count<A>(shape, run));
  }
  return blocks;
}

// Pairs are ordered by query, then by head of the group, so that queries of a block are adjacent.
template <class A>
void set_lanes(const AttentionShape& shape, const AttentionRun& run, std::int64_t kv_head,
               std::int64_t block, LaneBlock<A>& lanes);

// Rows of one head are far apart, on different pages, which defeats the hardware prefetcher.
template <class T>
BEV_INLINE void prefetch_row(const T* row, std::int64_t stride, int columns) {
  constexpr int kAhead = 8, kLine = 64;
  const auto* address = reinterpret_cast<const char*>(row + kAhead * stride);
  for (int at = 0; at < columns * static_cast<int>(sizeof(T)); at += kLine) {
    __builtin_prefetch(address + at);
  }
}

// Copies `rows` rows of D elements into rows of a padded tile; padding columns are 0.
template <class T, class A>
void load_rows(const T* source, std::int64_t stride, int rows, int head_size, A* tile) {
  const int padded = padded_head(head_size);
  for (int row = 0; row < rows; ++row) {
    const T* __restrict from = source + row * stride;
    A* __restrict to = tile + row * padded;
    prefetch_row(from, stride, head_size);
    for (int d = 0; d < head_size; ++d) to[d] = widen(from[d]);
    for (int d = head_size; d < padded; ++d) to[d] = 0;
  }
}

// Sets the padding rows of a tile, after `rows` rows, to 0.
template <class A>
void clear_padding(int rows, int head_size, A* tile) {
  const int padded = padded_head(head_size);
  std::fill(tile + rows * padded, tile + round_up(rows, kTileRows) * padded, A{0});
}

// Copies `rows` rows of D elements into a padded tile; padding columns and rows are 0.
template <class T, class A>
void load_tile(const T* source, std::int64_t stride, int rows, int head_size, A* tile) {
  load_rows(source, stride, rows, head_size, tile);
  clear_padding(rows, head_size, tile);
}

// rows[lane, D] -> columns[D, lane]; both padded, with kBlock lanes per row of columns.
template <class A>
void transpose_lanes(int width, int padded, const A* rows, A* columns);

// Loads the lanes' rows of a [T, heads * D] matrix, times factor, as rows [lane, D]; padding is 0.
template <class T, class A>
void load_lanes(const T* source, std::int64_t stride, const LaneBlock<A>& lanes, int head_size,
                A factor, A* rows) {
  const int padded = padded_head(head_size);
  for (int i = 0; i < round_up(lanes.width, 8); ++i) {
    A* __restrict to = rows + i * padded;
    int d = 0;
    if (i < lanes.count) {
      const T* __restrict from = source + lanes.row[i] * stride + lanes.head[i] * head_size;
      prefetch_row(from, stride, head_size);
      for (; d < head_size; ++d) to[d] = widen(from[d]) * factor;
    }
    for (; d < padded; ++d) to[d] = 0;
  }
}

// Inverse of load_lanes: writes the lanes' rows.
template <class T, class A>
void store_lanes(const A* rows, const LaneBlock<A>& lanes, int head_size, T* target,
                 std::int64_t stride) {
  for (int i = 0; i < lanes.count; ++i) {
    const A* __restrict from = rows + i * padded_head(head_size);
    T* __restrict to = target + lanes.row[i] * stride + lanes.head[i] * head_size;
    for (int d = 0; d < head_size; ++d) to[d] = narrow<T>(from[d]);
  }
}

// columns[D, lane] -> rows[lane, D].
template <class A>
void transpose_back(int width, int padded, const A* columns, A* rows);

// scores = softcap * tanh(scores / softcap).
template <class A>
void cap_scores(int keys, int width, A softcap, A* scores);

// Writes `value` where a lane does not see the key.
template <class A>
void mask_scores(const LaneBlock<A>& lanes, int key_begin, int keys, A value, A* scores);

// 0 or 1 / (1 - p) per key and lane.
template <class A>
void set_dropout(const AttentionShape& shape, const LaneBlock<A>& lanes, int key_begin, int keys,
                 A* factors);

}  // namespace bev::cpu::BEV_CPU_LEVEL
