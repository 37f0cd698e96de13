// Keys split over blocks: where the parts lie that a second kernel joins.
#pragma once

#include "backend/cuda/attention_masks.cuh"

namespace bev::cuda_attention {

// Where the result of a pair over one split lies in part_lse and, in rows, in part_out.
__device__ inline std::int64_t part_index(const DecodeParams& params, int split, int kv_head,
                                          int pair) {
  const std::int64_t at = std::int64_t{blockIdx.z} * params.splits + split;
  return (at * params.forward.shape.kv_heads + kv_head) * params.pairs + pair;
}

// The keys of a split: whole tiles.
__device__ inline Range split_range(Range keys, int split, int splits, int tile) {
  const int tiles = ceil_div(max(0, keys.end - keys.begin), tile);
  const int step = ceil_div(tiles, splits) * tile;
  return {keys.begin + split * step, min(keys.end, keys.begin + (split + 1) * step)};
}

// Memory for the parts of all runs of a launch, whose counts are set.
inline void take_parts(CudaQueue& queue, DecodeParams& params, int runs) {
  const Shape& shape = params.forward.shape;
  const std::int64_t parts = std::int64_t{shape.kv_heads} * runs * params.splits * params.pairs;
  params.part_out = static_cast<float*>(
      queue.scratch(static_cast<std::size_t>(parts * (shape.v_head_size + 1)) * sizeof(float)));
  params.part_lse = params.part_out + parts * shape.v_head_size;
}

}  // namespace bev::cuda_attention
