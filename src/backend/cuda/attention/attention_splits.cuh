// Split-KV (flash decoding): partial results over splits of the keys, which a second kernel merges.
// The grid has splits for the upper bound of the keys; a block derives the splits of its run from
// the current number of keys, and those in excess return at once.
#pragma once

#include "backend/cuda/attention/attention_runs.cuh"

namespace bev::cuda_attention {

// Splits of one run. If there is only one, its blocks write the result itself.
struct KeySplits {
  Range keys;  // visible to some query
  int begin;   // of the first tile
  int step;    // keys of a split
  int count;   // at least 1

  __device__ Range at(int split) const {
    const int first = begin + split * step;
    return {max(keys.begin, first), min(keys.end, first + step)};
  }
};
__device__ inline KeySplits splits_of(const DecodeParams& params, const AttentionRun& run) {
  constexpr int kMostTiles = 64;  // of a split, unless the grid has too few
  const Range keys = visible_keys(params.forward.shape, run, 0, run.q_count - 1);
  const int begin = keys.begin / kTileKeys * kTileKeys;
  const int tiles = ceil_div(keys.end - begin, kTileKeys);
  const int step = max(min(ceil_div(tiles, params.busy_splits), kMostTiles),
                       max(1, ceil_div(tiles, params.splits)));
  return {keys, begin, step * kTileKeys, max(1, ceil_div(tiles, step))};
}

// Index of a pair's result over one split in part_lse, and of its row in part_out.
__device__ inline std::int64_t part_index(const DecodeParams& params, int split, int kv_head,
                                          int pair) {
  const std::int64_t at = std::int64_t{blockIdx.z} * params.splits + split;
  return (at * params.forward.shape.kv_heads + kv_head) * params.pairs + pair;
}

// Index of a (query, head) pair in lse, and of its row in out.
__device__ inline std::int64_t out_index(const Shape& shape, const AttentionRun& run, int kv_head,
                                         int pair) {
  const int head = kv_head * shape.group + pair % shape.group;
  return (std::int64_t{run.q_begin} + pair / shape.group) * shape.q_heads + head;
}

// What a kernel wants of its splits.
struct SplitRule {
  int busy_blocks;  // that make the device busy
  int least_keys, most_splits;
};
// Sets the number of splits, given the blocks of one. Many keys have more splits than make the
// device busy, lest a long run is left alone at the end.
inline void choose_splits(DecodeParams& params, const RunChunk& chunk, int split_blocks,
                          const SplitRule& rule) {
  constexpr int kManyKeys = 4096, kMostBlocks = 8;  // times the busy ones
  const Shape& shape = params.forward.shape;
  const std::int64_t seen = std::int64_t{shape.upper} - shape.lower + chunk.most_queries;
  const int keys = static_cast<int>(std::min<std::int64_t>(chunk.most_keys, seen + kTileKeys));
  const int most = std::clamp(ceil_div(keys, rule.least_keys), 1, rule.most_splits);
  params.busy_splits = std::clamp(rule.busy_blocks / split_blocks, 1, most);
  const int extra =
      std::min(ceil_div(keys, kManyKeys), kMostBlocks * rule.busy_blocks / split_blocks);
  params.splits = std::clamp(extra, params.busy_splits, most);
}

// Scratch memory for the partial results of all runs of a launch; splits and pairs must be set.
inline void take_parts(CudaQueue& queue, DecodeParams& params, int runs) {
  const Shape& shape = params.forward.shape;
  const std::int64_t parts = std::int64_t{shape.kv_heads} * runs * params.splits * params.pairs;
  params.part_out = static_cast<float*>(
      queue.scratch(static_cast<std::size_t>(parts * (shape.v_head_size + 1)) * sizeof(float)));
  params.part_lse = params.part_out + parts * shape.v_head_size;
}

}  // namespace bev::cuda_attention
