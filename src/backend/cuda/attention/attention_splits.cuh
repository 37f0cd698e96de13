// Split-KV (flash decoding): partial results of key splits, which a second kernel merges.
#pragma once

#include "backend/cuda/attention/attention_masks.cuh"

namespace bev::cuda_attention {

// Index of a pair's result over one split in part_lse, and of its row in part_out.
__device__ inline std::int64_t part_index(const DecodeParams& params, int split, int kv_head,
                                          int pair) {
  const std::int64_t at = std::int64_t{blockIdx.z} * params.splits + split;
  return (at * params.forward.shape.kv_heads + kv_head) * params.pairs + pair;
}

// Keys of a split, in whole tiles.
__device__ inline Range split_range(Range keys, int split, int splits, int tile) {
  const int tiles = ceil_div(max(0, keys.end - keys.begin), tile);
  const int step = ceil_div(tiles, splits) * tile;
  return {keys.begin + split * step, min(keys.end, keys.begin + (split + 1) * step)};
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
