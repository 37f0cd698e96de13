// Shared by the router kernels: one warp per token, whose lanes split the experts, with scores in
// shared memory.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "kernels/router.h"

namespace bev::cuda {

constexpr float kNone = -__builtin_inff();
constexpr int kMostWarps = 8;
constexpr std::size_t kSharedBytes = 48 * 1024;
constexpr float kTiny = 1e-20f;

struct Rule {
  int experts, topk, groups, group_topk, group_experts;
  RouterScore score;
  bool pre_softmax, normalize, by_logit;
  float scaling;
};

inline Rule rule_of(const RoutingRule& rule, std::int64_t experts) {
  return {
      static_cast<int>(experts),
      static_cast<int>(rule.topk),
      static_cast<int>(rule.groups),
      static_cast<int>(rule.group_topk),
      static_cast<int>(rule.group_experts),
      rule.score,
      rule.pre_softmax,
      rule.normalize,
      rule.by_logit || (rule.score == RouterScore::kSoftmax && rule.groups <= 1 && !rule.by_score),
      static_cast<float>(rule.scaling)};
}

__device__ inline int lane_of() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ inline std::int64_t token_of() {
  return static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
}
// The warp's `each` rows of E floats.
__device__ inline float* own_rows(int experts, int each) {
  extern __shared__ float shared[];
  return shared + static_cast<int>(threadIdx.x / kWarp) * experts * each;
}

// Writes the scores and returns the log-sum-exp of the logits.
__device__ inline float scores_of(const Rule& rule, const float* logits, float* scores) {
  float most = kNone, sum = 0;
  for (int e = lane_of(); e < rule.experts; e += kWarp) most = fmaxf(most, logits[e]);
  most = reduce_warp<Max>(most);
  for (int e = lane_of(); e < rule.experts; e += kWarp) sum += expf(logits[e] - most);
  const float lse = most + logf(reduce_warp<Sum>(sum));
  for (int e = lane_of(); e < rule.experts; e += kWarp) {
    const float x = logits[e];
    if (rule.score == RouterScore::kSoftmax) {
      scores[e] = expf(x - lse);
    } else if (rule.score == RouterScore::kSigmoid) {
      scores[e] = 1 / (1 + expf(-x));
    } else {
      scores[e] = sqrtf(fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
    }
  }
  __syncwarp();
  return lse;
}

// Grid of warps, each with `each` rows of E floats in shared memory.
struct WarpGrid {
  unsigned blocks, threads;
  std::size_t shared;
};
inline WarpGrid warp_grid(std::int64_t tokens, std::int64_t experts, int each) {
  const std::size_t bytes = static_cast<std::size_t>(experts * each) * sizeof(float);
  BEV_CHECK(bytes <= kSharedBytes, ErrorKind::kDevice, "CUDA: router: ", experts,
            " experts are too many; at most ", kSharedBytes / sizeof(float) / 3);
  const auto warps =
      std::min<std::int64_t>(kMostWarps, static_cast<std::int64_t>(kSharedBytes / bytes));
  return {static_cast<unsigned>(ceil_div(tokens, warps)), static_cast<unsigned>(warps * kWarp),
          bytes * static_cast<std::size_t>(warps)};
}

}  // namespace bev::cuda
