// How tokens choose experts, and the gradients of it: a warp for each token, whose lanes share the
// experts. A warp keeps its scores in shared memory.
#include <algorithm>

#include "backend/cuda/grid.cuh"
#include "backend/cuda/moe_parts.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/values.cuh"

namespace bev::cuda {

namespace {

constexpr float kNone = -__builtin_inff();
constexpr int kMostWarps = 8;
constexpr std::size_t kSharedBytes = 48 * 1024;
constexpr float kTiny = 1e-20f;

struct Rule {
  int experts, topk, groups, group_topk, group_experts;
  RouterScore score;
  bool pre_softmax, normalize;
  float scaling;
};

Rule rule_of(const RoutingRule& rule, std::int64_t experts) {
  return {static_cast<int>(experts),         static_cast<int>(rule.topk),
          static_cast<int>(rule.groups),     static_cast<int>(rule.group_topk),
          static_cast<int>(rule.group_experts), rule.score,
          rule.pre_softmax,                  rule.normalize,
          static_cast<float>(rule.scaling)};
}

__device__ int lane_of() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ std::int64_t token_of() {
  return static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / kWarp) + threadIdx.x / kWarp;
}
// The warp's `each` rows of E numbers.
__device__ float* own_rows(int experts, int each) {
  extern __shared__ float shared[];
  return shared + static_cast<int>(threadIdx.x / kWarp) * experts * each;
}

// Writes scores; returns log(sum(exp(logits))).
__device__ float scores_of(const Rule& rule, const float* logits, float* scores) {
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

// The place of the largest key, the first of equal ones; always a valid one.
__device__ int best_of(const float* keys, int count) {
  float best = kNone;
  int at = count;
  for (int e = lane_of(); e < count; e += kWarp) {
    if (keys[e] > best || at == count) {
      best = keys[e];
      at = e;
    }
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, best, distance);
    const int other_at = __shfl_xor_sync(0xffffffffu, at, distance);
    // Every lane joins the same two in the same order, so that all agree even about NaN.
    const bool upper = (lane_of() & distance) != 0;
    const float a = upper ? other : best, b = upper ? best : other;
    const int a_at = upper ? other_at : at, b_at = upper ? at : other_at;
    const bool second = a_at == count || (b_at != count && (b > a || (b == a && b_at < a_at)));
    best = second ? b : a;
    at = second ? b_at : a_at;
  }
  return at < count ? at : count - 1;
}

// Sum of the largest `wanted` of the members; lanes have groups of their own.
__device__ float group_total(const float* members, int size, int wanted) {
  float total = 0, last = __builtin_inff();
  int last_at = -1;
  for (int i = 0; i < wanted; ++i) {
    float best = kNone;
    int at = -1;
    for (int e = 0; e < size; ++e) {
      // Those that come after the last one taken, by size, then by place.
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

// What the scores of the chosen are divided by, for scores that are no softmax over the chosen.
__device__ float score_divisor(const Rule& rule, const float* scores, const std::int32_t* chosen) {
  if (rule.score == RouterScore::kSoftmax || !rule.normalize || rule.topk == 1) return 1;
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
  scores_of(rule, logits, scores);
  const bool by_logit = rule.score == RouterScore::kSoftmax && rule.groups <= 1;
  for (int e = lane_of(); e < rule.experts; e += kWarp) {
    keys[e] = (by_logit ? logits[e] : scores[e]) + bias_at(args, e);
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

// Adds the gradient of the probabilities to that of the scores, or of the logits.
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
  if (rule.score != RouterScore::kSoftmax && rule.normalize && rule.topk > 1) {
    for (int j = lane_of(); j < rule.topk; j += kWarp) {
      mean += dprobs[j] * scores[chosen[j]] / divisor;
    }
    mean = reduce_warp<Sum>(mean);
  }
  for (int j = lane_of(); j < rule.topk; j += kWarp) {
    d_scores[chosen[j]] += rule.scaling * (dprobs[j] - mean) / divisor;
  }
}

__device__ void balance_backward(const RouteBackward& args, const Balance& term,
                                 std::int64_t token, const float* scores, float* d_scores) {
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
  const float weight = static_cast<float>(*args.factor) * term.coefficient *
                       static_cast<float>(experts) / chosen;
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
  const float z = args.z_coefficient == 0
                      ? 0
                      : 2 * static_cast<float>(*args.factor) * args.z_coefficient * lse;
  for (int e = lane_of(); e < rule.experts; e += kWarp) {
    const float x = logits[e], score = scores[e];
    float slope = score * (1 - score);
    if (rule.score == RouterScore::kSqrtSoftplus) {
      slope = score > 0 ? 1 / (2 * score * (1 + expf(-x))) : 0;
    }
    const float own = softmax ? score * (d_scores[e] - mean) : d_scores[e] * slope;
    args.dlogits[token * rule.experts + e] =
        d_logits[e] + own + (z == 0 ? 0 : z * expf(x - lse));
  }
}

// A grid of warps, each with `each` rows of E numbers in shared memory.
struct WarpGrid {
  unsigned blocks, threads;
  std::size_t shared;
};
WarpGrid warp_grid(std::int64_t tokens, std::int64_t experts, int each) {
  const std::size_t bytes = static_cast<std::size_t>(experts * each) * sizeof(float);
  BEV_CHECK(bytes <= kSharedBytes, ErrorKind::kDevice, "CUDA: router: ", experts,
            " experts are too many; at most ", kSharedBytes / sizeof(float) / 3);
  const auto warps =
      std::min<std::int64_t>(kMostWarps, static_cast<std::int64_t>(kSharedBytes / bytes));
  return {static_cast<unsigned>(ceil_div(tokens, warps)), static_cast<unsigned>(warps * kWarp),
          bytes * static_cast<std::size_t>(warps)};
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
  BEV_CHECK(args.balance.size() <= kMostTerms, ErrorKind::kInternal, "route backward: ",
            args.balance.size(), " losses");
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

namespace {

__global__ void __launch_bounds__(kThreads)
    count_kernel(const std::int32_t* experts, const std::int32_t* group, int* counts,
                 std::int64_t slots, int topk, int expert_count) {
  const std::int64_t s = own_pack();
  if (s >= slots) return;
  const int row = group == nullptr ? 0 : group[s / topk];
  atomicAdd(&counts[static_cast<std::int64_t>(row) * expert_count + experts[s]], 1);
}

__global__ void __launch_bounds__(kThreads)
    to_float_kernel(const int* from, float* to, std::int64_t count) {
  const std::int64_t i = own_pack();
  if (i < count) to[i] = static_cast<float>(from[i]);
}

// Tokens of a block, which adds them up one after the other.
constexpr int kBlockTokens = 64;

// parts [blocks, E + 2]: sums of scores, of lse^2 and of the entropy. One warp.
__global__ void __launch_bounds__(kWarp)
    score_parts_kernel(const float* logits, std::int64_t tokens, Rule rule, float* parts) {
  float* scores = own_rows(rule.experts, 2);
  float* sums = scores + rule.experts;
  for (int e = lane_of(); e < rule.experts; e += kWarp) sums[e] = 0;
  float squares = 0, entropies = 0;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kBlockTokens;
  const std::int64_t end = begin + kBlockTokens < tokens ? begin + kBlockTokens : tokens;
  for (std::int64_t t = begin; t < end; ++t) {
    const float lse = scores_of(rule, logits + t * rule.experts, scores);
    float total = 0, entropy = 0;
    for (int e = lane_of(); e < rule.experts; e += kWarp) total += scores[e];
    total = reduce_warp<Sum>(total) + kTiny;
    for (int e = lane_of(); e < rule.experts; e += kWarp) {
      const float share = scores[e] / total;
      sums[e] += share;
      if (share > 0) entropy -= share * logf(share);
    }
    entropies += reduce_warp<Sum>(entropy);
    squares += lse * lse;
    __syncwarp();
  }
  float* to = parts + static_cast<std::int64_t>(blockIdx.x) * (rule.experts + 2);
  for (int e = lane_of(); e < rule.experts; e += kWarp) to[e] = sums[e];
  if (lane_of() == 0) {
    to[rule.experts] = squares;
    to[rule.experts + 1] = entropies;
  }
}

__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const float* parts, int blocks, int experts, float* scores, float* totals) {
  const int e = static_cast<int>(own_pack());
  if (e >= experts + 2) return;
  float sum = 0;
  for (int b = 0; b < blocks; ++b) sum += parts[static_cast<std::int64_t>(b) * (experts + 2) + e];
  (e < experts ? scores[e] : totals[e - experts]) = sum;
}

void load_scores(CudaQueue& queue, const RouterLoadArgs& args) {
  const std::int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  const std::int64_t blocks = ceil_div(tokens, kBlockTokens);
  auto* parts = static_cast<float*>(
      queue.scratch(static_cast<std::size_t>(std::max<std::int64_t>(blocks, 1) * (experts + 2)) *
                    sizeof(float)));
  const WarpGrid grid = warp_grid(1, experts, 2);
  if (blocks > 0) {
    score_parts_kernel<<<static_cast<unsigned>(blocks), kWarp,
                         grid.shared / (grid.threads / kWarp), queue.stream()>>>(
        address<float>(args.logits), tokens, rule_of(args.rule, experts), parts);
  }
  add_parts_kernel<<<static_cast<unsigned>(ceil_div(experts + 2, kThreads)), kThreads, 0,
                     queue.stream()>>>(parts, static_cast<int>(blocks), static_cast<int>(experts),
                                       address<float>(args.scores), address<float>(args.totals));
  check_launch("router scores");
}

}  // namespace

void router_load(const Stream& stream, const RouterLoadArgs& args) {
  const std::int64_t experts = args.logits.shape[1], slots = args.experts.numel();
  const std::int64_t cells = args.counts.numel();
  CudaQueue& queue = queue_of(stream);
  // Whole numbers: the order in which they are added does not matter.
  auto* counts = static_cast<int*>(queue.scratch(static_cast<std::size_t>(cells) * sizeof(int)));
  check_cuda(cudaMemsetAsync(counts, 0, static_cast<std::size_t>(cells) * sizeof(int),
                             queue.stream()),
             "router load");
  if (slots > 0) {
    count_kernel<<<static_cast<unsigned>(ceil_div(slots, kThreads)), kThreads, 0,
                   queue.stream()>>>(args.experts.as<std::int32_t>(), args.group, counts, slots,
                                     static_cast<int>(args.rule.topk), static_cast<int>(experts));
  }
  to_float_kernel<<<static_cast<unsigned>(ceil_div(cells, kThreads)), kThreads, 0,
                    queue.stream()>>>(counts, address<float>(args.counts), cells);
  check_launch("router load");
  if (!args.scores.empty()) load_scores(queue, args);
}

namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    spread_kernel(const float* probs, const std::int32_t* experts, T* dense, std::int64_t tokens,
                  int topk, int expert_count) {
  const std::int64_t token = token_of();
  if (token >= tokens) return;
  T* row = dense + token * expert_count;
  for (int e = lane_of(); e < expert_count; e += kWarp) row[e] = narrow<T>(0.0f);
  __syncwarp();
  for (int j = lane_of(); j < topk; j += kWarp) {
    row[experts[token * topk + j]] = narrow<T>(probs[token * topk + j]);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    pick_kernel(float* probs, const std::int32_t* experts, const T* dense, std::int64_t slots,
                int topk, int expert_count) {
  const std::int64_t s = own_pack();
  if (s < slots) probs[s] = widen(dense[s / topk * expert_count + experts[s]]);
}

}  // namespace

void spread(const Stream& stream, const ChoiceArgs& args) {
  const std::int64_t tokens = args.dense.shape[0];
  if (tokens == 0) return;
  visit_value(args.dense.dtype, [&](auto type) {
    using T = decltype(type);
    spread_kernel<T><<<static_cast<unsigned>(ceil_div(tokens, kThreads / kWarp)), kThreads, 0,
                       queue_of(stream).stream()>>>(
        address<float>(args.probs), args.experts.as<std::int32_t>(), address<T>(args.dense),
        tokens, static_cast<int>(args.experts.shape[1]), static_cast<int>(args.dense.shape[1]));
  });
  check_launch("spread");
}

void pick(const Stream& stream, const ChoiceArgs& args) {
  const std::int64_t slots = args.experts.numel();
  if (slots == 0) return;
  visit_value(args.dense.dtype, [&](auto type) {
    using T = decltype(type);
    pick_kernel<T><<<static_cast<unsigned>(ceil_div(slots, kThreads)), kThreads, 0,
                     queue_of(stream).stream()>>>(
        address<float>(args.probs), args.experts.as<std::int32_t>(), address<T>(args.dense), slots,
        static_cast<int>(args.experts.shape[1]), static_cast<int>(args.dense.shape[1]));
  });
  check_launch("pick");
}

}  // namespace bev::cuda
