// MoE router: top-k choice of experts and its backward.
#include "backend/cuda/moe/moe_launchers.h"
#include "backend/cuda/moe/moe_router.cuh"
#include "backend/cuda/tables.h"
#include "tensor/routing_rule.h"

namespace bev::cuda {

namespace {

// Maps floats to integers of the same order. Zeros of both signs are equal.
__device__ unsigned rank_of(float x) {
  constexpr unsigned kSign = 1u << 31;
  const unsigned bits = __float_as_uint(x + 0.0f);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

// Index of the largest key, the first among equals; always in range.
__device__ int best_of(const float* keys, int count) {
  unsigned best = 0;
  int at = count;
  for (int e = lane_of(); e < count; e += kWarp) {
    const unsigned rank = rank_of(keys[e]);
    if (rank > best || at == count) {
      best = rank;
      at = e;
    }
  }
  const unsigned most = __reduce_max_sync(0xffffffffu, best);
  return min(__reduce_min_sync(0xffffffffu, best == most ? at : count), count - 1);
}

// Sum of the largest `wanted` members; each lane handles its own group.
__device__ float group_total(const float* members, int size, int wanted) {
  float total = 0, last = __builtin_inff();
  int last_at = -1;
  for (int i = 0; i < wanted; ++i) {
    float best = kNone;
    int at = -1;
    for (int e = 0; e < size; ++e) {
      // Elements after the last one taken, in descending order with ties by index.
      const bool after = members[e] < last || (members[e] == last && e > last_at);
      if (after && (at < 0 || members[e] > best)) {
        best = members[e];
        at = e;
      }
    }
    if (at < 0) break;
    total += best;
    last = best;
    last_at = at;
  }
  return total;
}

__device__ void limit_groups(const Rule& rule, float* keys, float* totals) {
  if (rule.groups <= 1) return;
  const int size = rule.experts / rule.groups;
  for (int g = lane_of(); g < rule.groups; g += kWarp) {
    totals[g] = group_total(keys + g * size, size, rule.group_experts);
  }
  __syncwarp();
  for (int open = 0; open < rule.group_topk; ++open) {
    const int best = best_of(totals, rule.groups);
    __syncwarp();
    if (lane_of() == 0) totals[best] = kNone;
    __syncwarp();
  }
  for (int e = lane_of(); e < rule.experts; e += kWarp) {
    if (totals[e / size] != kNone) keys[e] = kNone;
  }
  __syncwarp();
}

// Divisor of the chosen scores, for scores other than softmax.
__device__ float score_divisor(const Rule& rule, const float* scores, const std::int32_t* chosen) {
  if (rule.score == RouterScore::kSoftmax || !rule.normalize) return 1;
  float sum = 0;
  for (int j = lane_of(); j < rule.topk; j += kWarp) sum += scores[chosen[j]];
  return reduce_warp<Sum>(sum) + kTiny;
}

__device__ bool softmax_of_chosen(const Rule& rule) {
  return rule.score == RouterScore::kSoftmax && !rule.pre_softmax;
}

// Maximum and sum of exponentials of the chosen logits.
__device__ float2 chosen_softmax(const Rule& rule, const float* logits,
                                 const std::int32_t* chosen) {
  float most = kNone, sum = 0;
  for (int j = lane_of(); j < rule.topk; j += kWarp) most = fmaxf(most, logits[chosen[j]]);
  most = reduce_warp<Max>(most);
  for (int j = lane_of(); j < rule.topk; j += kWarp) sum += expf(logits[chosen[j]] - most);
  return {most, reduce_warp<Sum>(sum)};
}

struct Route {
  const float* logits;
  const void* bias;
  Dtype bias_dtype;
  std::int32_t* experts;
  float* probs;
  std::int64_t tokens;
  Rule rule;
};

__device__ float bias_at(const Route& args, int e) {
  if (args.bias == nullptr) return 0;
  if (args.bias_dtype == Dtype::kBf16) return widen(static_cast<const Bfloat*>(args.bias)[e]);
  if (args.bias_dtype == Dtype::kF16) return widen(static_cast<const Half*>(args.bias)[e]);
  return static_cast<const float*>(args.bias)[e];
}

__global__ void __launch_bounds__(kMostWarps* kWarp) route_kernel(Route args) {
  const Rule rule = args.rule;
  const std::int64_t token = token_of();
  if (token >= args.tokens) return;
  float* scores = own_rows(rule.experts, 3);
  float *keys = scores + rule.experts, *totals = keys + rule.experts;
  const float* logits = args.logits + token * rule.experts;
  std::int32_t* chosen = args.experts + token * rule.topk;
  float* probs = args.probs + token * rule.topk;
  if (!rule.by_logit || !softmax_of_chosen(rule)) scores_of(rule, logits, scores);
  for (int e = lane_of(); e < rule.experts; e += kWarp) {
    keys[e] = (rule.by_logit ? logits[e] : scores[e]) + bias_at(args, e);
  }
  __syncwarp();
  limit_groups(rule, keys, totals);
  for (int j = 0; j < rule.topk; ++j) {
    const int best = best_of(keys, rule.experts);
    __syncwarp();
    if (lane_of() == 0) {
      keys[best] = kNone;
      chosen[j] = best;
    }
    __syncwarp();
  }
  if (softmax_of_chosen(rule)) {
    const float2 softmax = chosen_softmax(rule, logits, chosen);
    for (int j = lane_of(); j < rule.topk; j += kWarp) {
      probs[j] = expf(logits[chosen[j]] - softmax.x) / softmax.y * rule.scaling;
    }
    return;
  }
  const float divisor = score_divisor(rule, scores, chosen);
  for (int j = lane_of(); j < rule.topk; j += kWarp) {
    probs[j] = scores[chosen[j]] / divisor * rule.scaling;
  }
}

struct Balance {
  const float* counts;
  const std::int32_t* group;
  float coefficient;
};
constexpr int kMostTerms = 4;

struct RouteBackward {
  const float *dprobs, *logits;
  const std::int32_t* experts;
  float* dlogits;
  std::int64_t tokens;
  Rule rule;
  Balance balance[kMostTerms];
  int terms;
  float z_coefficient;
  const double* factor;
};

// Adds the gradient of the probabilities to that of the scores or of the logits.
__device__ void probabilities_backward(const RouteBackward& args, std::int64_t token,
                                       const float* logits, const float* scores, float* d_scores,
                                       float* d_logits) {
  const Rule& rule = args.rule;
  const std::int32_t* chosen = args.experts + token * rule.topk;
  const float* dprobs = args.dprobs + token * rule.topk;
  float mean = 0;
  if (softmax_of_chosen(rule)) {
    const float2 softmax = chosen_softmax(rule, logits, chosen);
    for (int j = lane_of(); j < rule.topk; j += kWarp) {
      mean += dprobs[j] * expf(logits[chosen[j]] - softmax.x) / softmax.y;
    }
    mean = reduce_warp<Sum>(mean);
    for (int j = lane_of(); j < rule.topk; j += kWarp) {
      const float prob = expf(logits[chosen[j]] - softmax.x) / softmax.y * rule.scaling;
      d_logits[chosen[j]] += prob * (dprobs[j] - mean);
    }
    return;
  }
  const float divisor = score_divisor(rule, scores, chosen);
  if (rule.score != RouterScore::kSoftmax && rule.normalize) {
    for (int j = lane_of(); j < rule.topk; j += kWarp) {
      mean += dprobs[j] * scores[chosen[j]] / divisor;
    }
    mean = reduce_warp<Sum>(mean);
  }
  for (int j = lane_of(); j < rule.topk; j += kWarp) {
    d_scores[chosen[j]] += rule.scaling * (dprobs[j] - mean) / divisor;
  }
}

__device__ void balance_backward(const RouteBackward& args, const Balance& term, std::int64_t token,
                                 const float* scores, float* d_scores) {
  const int experts = args.rule.experts;
  const int group = term.group == nullptr ? 0 : term.group[token];
  const float* counts = term.counts + static_cast<std::int64_t>(group) * experts;
  float chosen = 0, total = 0, mean = 0;
  for (int e = lane_of(); e < experts; e += kWarp) {
    chosen += counts[e];
    total += scores[e];
    mean += counts[e] * scores[e];
  }
  chosen = reduce_warp<Sum>(chosen);
  total = reduce_warp<Sum>(total) + kTiny;
  mean = reduce_warp<Sum>(mean) / total;
  if (chosen == 0) return;
  const float weight =
      static_cast<float>(*args.factor) * term.coefficient * static_cast<float>(experts) / chosen;
  const bool softmax = args.rule.score == RouterScore::kSoftmax;
  for (int e = lane_of(); e < experts; e += kWarp) {
    d_scores[e] += softmax ? weight * counts[e] : weight * (counts[e] - mean) / total;
  }
}

__global__ void __launch_bounds__(kMostWarps* kWarp) route_backward_kernel(RouteBackward args) {
  const Rule& rule = args.rule;
  const std::int64_t token = token_of();
  if (token >= args.tokens) return;
  float* scores = own_rows(rule.experts, 3);
  float *d_scores = scores + rule.experts, *d_logits = d_scores + rule.experts;
  const float* logits = args.logits + token * rule.experts;
  const float lse = scores_of(rule, logits, scores);
  for (int e = lane_of(); e < rule.experts; e += kWarp) d_scores[e] = d_logits[e] = 0;
  __syncwarp();
  if (args.dprobs != nullptr) {
    probabilities_backward(args, token, logits, scores, d_scores, d_logits);
    __syncwarp();
  }
  for (int i = 0; i < args.terms; ++i) {
    balance_backward(args, args.balance[i], token, scores, d_scores);
  }
  const bool softmax = rule.score == RouterScore::kSoftmax;
  float mean = 0;
  for (int e = lane_of(); softmax && e < rule.experts; e += kWarp) mean += d_scores[e] * scores[e];
  mean = reduce_warp<Sum>(mean);
  const float z =
      args.z_coefficient == 0 ? 0 : 2 * static_cast<float>(*args.factor) * args.z_coefficient * lse;
  for (int e = lane_of(); e < rule.experts; e += kWarp) {
    const float x = logits[e], score = scores[e];
    float slope = score * (1 - score);
    if (rule.score == RouterScore::kSqrtSoftplus) {
      slope = score > 0 ? 1 / (2 * score * (1 + expf(-x))) : 0;
    }
    const float own = softmax ? score * (d_scores[e] - mean) : d_scores[e] * slope;
    args.dlogits[token * rule.experts + e] = d_logits[e] + own + (z == 0 ? 0 : z * expf(x - lse));
  }
}

}  // namespace

void route(const Stream& stream, const RouteArgs& args) {
  const std::int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  if (tokens == 0) return;
  const WarpGrid grid = warp_grid(tokens, experts, 3);
  const Route work{address<float>(args.logits),
                   args.bias.data,
                   args.bias.dtype,
                   args.experts.as<std::int32_t>(),
                   address<float>(args.probs),
                   tokens,
                   rule_of(args.rule, experts)};
  route_kernel<<<grid.blocks, grid.threads, grid.shared, queue_of(stream).stream()>>>(work);
  check_launch("route");
}

void route_backward(const Stream& stream, const RouteBackwardArgs& args) {
  const std::int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  if (tokens == 0) return;
  BEV_CHECK(args.balance.size() <= kMostTerms, ErrorKind::kInternal,
            "route backward: ", args.balance.size(), " losses");
  const WarpGrid grid = warp_grid(tokens, experts, 3);
  RouteBackward work{address<float>(args.dprobs),
                     address<float>(args.logits),
                     args.experts.as<std::int32_t>(),
                     address<float>(args.dlogits),
                     tokens,
                     rule_of(args.rule, experts),
                     {},
                     0,
                     static_cast<float>(args.z_coefficient),
                     args.factor};
  for (const BalanceTerm& term : args.balance) {
    work.balance[work.terms++] = {address<float>(term.counts), term.group,
                                  static_cast<float>(term.coefficient)};
  }
  route_backward_kernel<<<grid.blocks, grid.threads, grid.shared, queue_of(stream).stream()>>>(
      work);
  check_launch("route backward");
}

}  // namespace bev::cuda

namespace bev {

RouterKernels cuda_table(Family<RouterKernels>) {
  return {.jitter = cuda::jitter,
          .sinkhorn = cuda::sinkhorn,
          .route = cuda::route,
          .route_backward = cuda::route_backward,
          .router_load = cuda::router_load,
          .spread = cuda::spread,
          .pick = cuda::pick,
          .limit = cuda::limit};
}

}  // namespace bev
