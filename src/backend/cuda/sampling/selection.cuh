// Device side of Selection: what a block knows of its row.
#pragma once

#include "backend/cuda/sampling/row_scale.cuh"
#include "backend/cuda/sampling/select.h"
#include "kernels/sampling.h"

namespace bev::cuda {

// How a row that is not greedy is searched.
struct RowPlan {
  Word total;               // all weights (nucleus only)
  Word before_first;        // weights of the bins before first_bin
  Word above;               // weights of the bins before cut_bin
  int cut_bin;              // the last bin that keeps tokens
  int first_bin, last_bin;  // bins that the drawn token may be in
  int cuts;                 // whether top-k, or without it top-p, cuts within cut_bin
};

__device__ inline bool is_greedy(const SamplingRule& rule) {
  return rule.temperature == 0 || rule.top_k == 1;
}
// A forced token needs no edits.
__device__ inline bool edits_logits(const SamplingRule& rule) {
  return rule.forced < 0 &&
         (rule.counts_row >= 0 || rule.edits_begin < rule.edits_end || rule.only_edited);
}
__device__ inline bool is_limited(const SamplingRule& rule, int columns) {
  return rule.top_k > 0 && rule.top_k < columns;
}
__device__ inline bool has_nucleus(const SamplingRule& rule) { return rule.top_p < 1; }

// The logits of a row after its edits.
__device__ inline const float* row_logits(const Selection& work, const SamplingRule& rule,
                                          int row) {
  return (edits_logits(rule) ? work.edited : work.logits) +
         static_cast<std::int64_t>(row) * work.columns;
}

// Every lane of the calling warp gets the result.
__device__ inline Extent row_extent(const Selection& work, int row) {
  Extent own = Extent::nothing();
  for (int part = threadIdx.x % kWarp; part < work.parts; part += kWarp) {
    own.join(work.extents[static_cast<std::int64_t>(row) * work.parts + part]);
  }
  return reduce_extent(own);
}

}  // namespace bev::cuda
