// MoE router: top-k choice of experts, its backward, and load statistics. One token at a time; E is
// small.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/moe_tables.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"
#include "kernels/router.h"
#include "tensor/routing_rule.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
constexpr std::int64_t kTokens = 64;  // per piece

// Scratch rows of E elements for each piece.
template <class A>
struct Rows {
  A* base = nullptr;
  std::int64_t experts = 0, each = 0;

  Rows(const Stream& stream, std::int64_t pieces, std::int64_t experts_, std::int64_t each_)
      : base(reinterpret_cast<A*>(
            stream.pool->scratch(static_cast<std::size_t>(pieces * experts_ * each_) * sizeof(A)))),
        experts(experts_),
        each(each_) {}
  A* at(std::int64_t piece, std::int64_t index) const {
    return base + (piece * each + index) * experts;
  }
};

// Writes the scores of one token and returns the log-sum-exp of its logits.
template <class A>
A scores_of(RouterScore kind, const A* logits, std::int64_t experts, A* scores) {
  const A most = *std::max_element(logits, logits + experts);
  A sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) sum += std::exp(logits[e] - most);
  const A lse = most + std::log(sum);
  for (std::int64_t e = 0; e < experts; ++e) {
    if (kind == RouterScore::kSoftmax) {
      scores[e] = std::exp(logits[e] - lse);
    } else if (kind == RouterScore::kSigmoid) {
      scores[e] = 1 / (1 + std::exp(-logits[e]));
    } else {
      const A softplus = std::max(logits[e], A{0}) + std::log1p(std::exp(-std::abs(logits[e])));
      scores[e] = std::sqrt(softplus);
    }
  }
  return lse;
}

// d score / d logit for scores that only depend on their own logit.
template <class A>
A score_slope(RouterScore kind, A logit, A score) {
  if (kind == RouterScore::kSigmoid) return score * (1 - score);
  return score > 0 ? 1 / (2 * score * (1 + std::exp(-logit))) : A{0};
}

template <class A>
BEV_INLINE A larger(A x, A y) {
  return x > y ? x : y;
}

// Index of the largest key, the first among equals. Lanes are compared independently, which
// shortens the dependency chain. NaN only wins at index 0.
template <class A>
std::int64_t best_of(const A* keys, std::int64_t count) {
  constexpr std::int64_t kLanes = 16;
  A lanes[kLanes];
  std::fill_n(lanes, kLanes, keys[0]);
  std::int64_t e = 0;
  for (; e + kLanes <= count; e += kLanes) {
    for (std::int64_t i = 0; i < kLanes; ++i) lanes[i] = larger(keys[e + i], lanes[i]);
  }
  A most = keys[0];
  for (; e < count; ++e) most = larger(keys[e], most);
  for (A lane : lanes) most = larger(lane, most);
  const A* place = std::find(keys, keys + count, most);
  return place == keys + count ? 0 : place - keys;
}

// Softmax is monotonic, and logits resolve differences better.
bool chooses_by_logit(const RoutingRule& rule) {
  return rule.by_logit ||
         (rule.score == RouterScore::kSoftmax && rule.groups <= 1 && !rule.by_score);
}
// Probabilities of a softmax over the chosen experts are computed from logits.
bool needs_scores(const RoutingRule& rule) {
  return !chooses_by_logit(rule) || rule.score != RouterScore::kSoftmax || rule.pre_softmax;
}

// Group-limited routing: excludes all but the best groups by setting their keys to -inf. `spare`
// has room for 2 E elements.
template <class A>
void limit_groups(const RoutingRule& rule, std::int64_t experts, A* keys, A* spare) {
  if (rule.groups <= 1) return;
  constexpr A kNone = -std::numeric_limits<A>::infinity();
  const std::int64_t size = experts / rule.groups;
  A* totals = spare;
  for (std::int64_t g = 0; g < rule.groups; ++g) {
    A* members = spare + rule.groups;
    std::copy_n(keys + g * size, size, members);
    totals[g] = 0;
    for (std::int64_t i = 0; i < rule.group_experts; ++i) {
      const std::int64_t best = best_of(members, size);
      totals[g] += members[best];
      members[best] = kNone;
    }
  }
  for (std::int64_t open = 0; open < rule.group_topk; ++open) {
    totals[best_of(totals, rule.groups)] = kNone;
  }
  for (std::int64_t g = 0; g < rule.groups; ++g) {
    if (totals[g] != kNone) std::fill_n(keys + g * size, size, kNone);
  }
}

// Probabilities of the chosen experts, by which their outputs are multiplied.
template <class A>
void probabilities(const RoutingRule& rule, const A* logits, const A* scores,
                   const std::int32_t* chosen, A* probs) {
  const auto scaling = static_cast<A>(rule.scaling);
  const bool softmax = rule.score == RouterScore::kSoftmax;
  A sum = 0;
  if (softmax && !rule.pre_softmax) {
    A most = logits[chosen[0]];
    for (std::int64_t j = 1; j < rule.topk; ++j) most = std::max(most, logits[chosen[j]]);
    for (std::int64_t j = 0; j < rule.topk; ++j) {
      probs[j] = std::exp(logits[chosen[j]] - most);
      sum += probs[j];
    }
  } else {
    for (std::int64_t j = 0; j < rule.topk; ++j) sum += probs[j] = scores[chosen[j]];
    if (softmax || !rule.normalize) {
      sum = 1;
    } else {
      sum += static_cast<A>(1e-20);
    }
  }
  for (std::int64_t j = 0; j < rule.topk; ++j) probs[j] = probs[j] / sum * scaling;
}

template <class A>
void choose(const RouteArgs& args, const A* logits, A* scores, A* keys, A* spare,
            std::int32_t* chosen) {
  const std::int64_t experts = args.logits.shape[1];
  std::copy_n(chooses_by_logit(args.rule) ? logits : scores, experts, keys);
  if (!args.bias.empty()) {
    visit_float(args.bias.dtype, [&](auto type) {
      const auto* bias = args.bias.as<decltype(type)>();
      for (std::int64_t e = 0; e < experts; ++e) keys[e] += static_cast<A>(widen(bias[e]));
    });
  }
  limit_groups(args.rule, experts, keys, spare);
  for (std::int64_t j = 0; j < args.rule.topk; ++j) {
    const std::int64_t best = best_of(keys, experts);
    chosen[j] = static_cast<std::int32_t>(best);
    keys[best] = -std::numeric_limits<A>::infinity();
  }
}

// Adds the gradient of one token's probabilities to that of the scores (d_scores) or, for a softmax
// over the chosen experts, of the logits (d_logits).
template <class A>
void probabilities_backward(const RoutingRule& rule, const A* scores, const std::int32_t* chosen,
                            const A* probs, const A* dprobs, A* d_scores, A* d_logits) {
  const auto scaling = static_cast<A>(rule.scaling);
  const bool softmax = rule.score == RouterScore::kSoftmax;
  A mean = 0;  // of dprobs, weighted by the probabilities
  if (softmax && !rule.pre_softmax) {
    for (std::int64_t j = 0; j < rule.topk; ++j) mean += dprobs[j] * probs[j] / scaling;
    for (std::int64_t j = 0; j < rule.topk; ++j)
      d_logits[chosen[j]] += probs[j] * (dprobs[j] - mean);
    return;
  }
  A sum = 1;
  if (!softmax && rule.normalize) {
    sum = static_cast<A>(1e-20);
    for (std::int64_t j = 0; j < rule.topk; ++j) sum += scores[chosen[j]];
    for (std::int64_t j = 0; j < rule.topk; ++j) mean += dprobs[j] * scores[chosen[j]] / sum;
  }
  for (std::int64_t j = 0; j < rule.topk; ++j) {
    d_scores[chosen[j]] += scaling * (dprobs[j] - mean) / sum;
  }
}

// Adds the gradients of the balancing losses to d_scores. For scores other than softmax they go
// through the normalisation by the sum.
template <class A>
void balance_backward(const RouteBackwardArgs& args, std::int64_t token, A factor, const A* scores,
                      A* d_scores) {
  const std::int64_t experts = args.logits.shape[1];
  for (const BalanceTerm& term : args.balance) {
    const std::int64_t group = term.group == nullptr ? 0 : term.group[token];
    const A* counts = term.counts.as<A>() + group * experts;
    A chosen = 0, total = 0, mean = 0;
    for (std::int64_t e = 0; e < experts; ++e) chosen += counts[e];
    if (chosen == 0) continue;
    const A weight = factor * static_cast<A>(term.coefficient) * static_cast<A>(experts) / chosen;
    if (args.rule.score == RouterScore::kSoftmax) {
      for (std::int64_t e = 0; e < experts; ++e) d_scores[e] += weight * counts[e];
      continue;
    }
    for (std::int64_t e = 0; e < experts; ++e) total += scores[e];
    total += static_cast<A>(1e-20);
    for (std::int64_t e = 0; e < experts; ++e) mean += counts[e] * scores[e] / total;
    for (std::int64_t e = 0; e < experts; ++e) d_scores[e] += weight * (counts[e] - mean) / total;
  }
}

// d_logits += d_scores propagated through the score function.
template <class A>
void scores_backward(RouterScore kind, const A* logits, const A* scores, std::int64_t experts,
                     const A* d_scores, A* d_logits) {
  A mean = 0;
  if (kind == RouterScore::kSoftmax) {
    for (std::int64_t e = 0; e < experts; ++e) mean += d_scores[e] * scores[e];
    for (std::int64_t e = 0; e < experts; ++e) d_logits[e] += scores[e] * (d_scores[e] - mean);
    return;
  }
  for (std::int64_t e = 0; e < experts; ++e) {
    d_logits[e] += d_scores[e] * score_slope(kind, logits[e], scores[e]);
  }
}

void check_route(const char* op, const View& logits, const View& experts, const RoutingRule& rule) {
  BEV_CHECK(logits.shape.ndim() == 2 && experts.shape == Shape({logits.shape[0], rule.topk}) &&
                experts.dtype == Dtype::kI32 && rule.topk <= logits.shape[1] &&
                logits.shape[1] % rule.groups == 0,
            ErrorKind::kInternal, op, ": logits ", logits.shape, ", experts ", experts.shape,
            ", top ", rule.topk, " of ", rule.groups, " groups");
}

// Calls f(A{}) with the dtype of the router, f32 or f64.
template <class F>
void visit_router(const View& logits, const F& f) {
  if (logits.dtype == Dtype::kF64) return f(double{});
  BEV_CHECK(logits.dtype == Dtype::kF32, ErrorKind::kInternal, "router: logits are ",
            name_of(logits.dtype));
  f(float{});
}
}  // namespace

void route(const Stream& stream, const RouteArgs& args) {
  check_route("route", args.logits, args.experts, args.rule);
  const std::int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  const std::int64_t topk = args.rule.topk;
  visit_router(args.logits, [&](auto type) {
    using A = decltype(type);
    // limit_groups needs room for the groups and for the members of one group.
    const Rows<A> rows(stream, ceil_div(tokens, kTokens), 2 * experts, 2);
    for_ranges(stream, tokens, kTokens, [&](std::int64_t begin, std::int64_t end) {
      A* scores = rows.at(begin / kTokens, 0);
      A *keys = scores + experts, *spare = rows.at(begin / kTokens, 1);
      for (std::int64_t t = begin; t < end; ++t) {
        const A* logits = args.logits.as<A>() + t * experts;
        std::int32_t* chosen = args.experts.as<std::int32_t>() + t * topk;
        if (needs_scores(args.rule)) scores_of(args.rule.score, logits, experts, scores);
        choose(args, logits, scores, keys, spare, chosen);
        probabilities(args.rule, logits, scores, chosen, args.probs.as<A>() + t * topk);
      }
    });
  });
}

void route_backward(const Stream& stream, const RouteBackwardArgs& args) {
  check_route("route backward", args.logits, args.experts, args.rule);
  const std::int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  const std::int64_t topk = args.rule.topk;
  visit_router(args.logits, [&](auto type) {
    using A = decltype(type);
    const A factor = args.factor == nullptr ? A{0} : static_cast<A>(*args.factor);
    const Rows<A> rows(stream, ceil_div(tokens, kTokens), experts, 3);
    for_ranges(stream, tokens, kTokens, [&](std::int64_t begin, std::int64_t end) {
      A* scores = rows.at(begin / kTokens, 0);
      A *d_scores = rows.at(begin / kTokens, 1), *probs = rows.at(begin / kTokens, 2);
      for (std::int64_t t = begin; t < end; ++t) {
        const A* logits = args.logits.as<A>() + t * experts;
        const std::int32_t* chosen = args.experts.as<std::int32_t>() + t * topk;
        A* d_logits = args.dlogits.as<A>() + t * experts;
        const A lse = scores_of(args.rule.score, logits, experts, scores);
        std::fill_n(d_logits, experts, A{0});
        std::fill_n(d_scores, experts, A{0});
        if (!args.dprobs.empty()) {
          probabilities(args.rule, logits, scores, chosen, probs);
          probabilities_backward(args.rule, scores, chosen, probs, args.dprobs.as<A>() + t * topk,
                                 d_scores, d_logits);
        }
        balance_backward(args, t, factor, scores, d_scores);
        scores_backward(args.rule.score, logits, scores, experts, d_scores, d_logits);
        if (args.z_coefficient == 0) continue;
        const A z = 2 * factor * static_cast<A>(args.z_coefficient) * lse;
        for (std::int64_t e = 0; e < experts; ++e) d_logits[e] += z * std::exp(logits[e] - lse);
      }
    });
  });
}

namespace {
constexpr std::int64_t kLoadTokens = 256;  // summed by one thread

// Adds one token's scores (softmax as is, others normalised by their sum), lse^2 and entropy to
// sums, which has E + 2 elements.
template <class A>
void add_scores(const RouterLoadArgs& args, std::int64_t token, A* scores, A* sums) {
  const std::int64_t experts = args.logits.shape[1];
  const A lse = scores_of(args.rule.score, args.logits.as<A>() + token * experts, experts, scores);
  A total = 0, entropy = 0;
  for (std::int64_t e = 0; e < experts; ++e) total += scores[e];
  for (std::int64_t e = 0; e < experts; ++e) {
    const A share = scores[e] / (total + static_cast<A>(1e-20));
    sums[e] += share;
    if (share > 0) entropy -= share * std::log(share);
  }
  sums[experts] += lse * lse;
  sums[experts + 1] += entropy;
}

template <class A>
void load_scores(const Stream& stream, const RouterLoadArgs& args) {
  const std::int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  const std::int64_t pieces = ceil_div(tokens, kLoadTokens);
  const Rows<A> rows(stream, pieces, experts + 2, 2);
  for_ranges(stream, tokens, kLoadTokens, [&](std::int64_t begin, std::int64_t end) {
    A* sums = rows.at(begin / kLoadTokens, 0);
    std::fill_n(sums, experts + 2, A{0});
    for (std::int64_t t = begin; t < end; ++t) {
      add_scores<A>(args, t, rows.at(begin / kLoadTokens, 1), sums);
    }
  });
  A *scores = args.scores.as<A>(), *totals = args.totals.as<A>();
  std::fill_n(scores, experts, A{0});
  std::fill_n(totals, 2, A{0});
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    const A* sums = rows.at(piece, 0);
    for (std::int64_t e = 0; e < experts; ++e) scores[e] += sums[e];
    for (std::int64_t i = 0; i < 2; ++i) totals[i] += sums[experts + i];
  }
}
}  // namespace

void router_load(const Stream& stream, const RouterLoadArgs& args) {
  check_route("router load", args.logits, args.experts, args.rule);
  const std::int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  visit_router(args.logits, [&](auto type) {
    using A = decltype(type);
    A* counts = args.counts.as<A>();
    std::fill_n(counts, args.counts.numel(), A{0});
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t group = args.group == nullptr ? 0 : args.group[t];
      const std::int32_t* chosen = args.experts.as<std::int32_t>() + t * args.rule.topk;
      for (std::int64_t j = 0; j < args.rule.topk; ++j) counts[group * experts + chosen[j]] += 1;
    }
    if (!args.scores.empty()) load_scores<A>(stream, args);
  });
}

namespace {
// Calls body(choices of a token, their values, its row of the dense matrix).
template <class Body>
void for_choices(const Stream& stream, const ChoiceArgs& args, const Body& body) {
  const std::int64_t experts = args.dense.shape[1], topk = args.experts.shape[1];
  visit_router(args.probs, [&](auto wide) {
    using A = decltype(wide);
    visit_float(args.dense.dtype, [&](auto type) {
      using T = decltype(type);
      for_ranges(stream, args.dense.shape[0], kTokens, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          body(args.experts.as<std::int32_t>() + t * topk, args.probs.as<A>() + t * topk,
               args.dense.as<T>() + t * experts);
        }
      });
    });
  });
}
}  // namespace

void spread(const Stream& stream, const ChoiceArgs& args) {
  const std::int64_t experts = args.dense.shape[1], topk = args.experts.shape[1];
  for_choices(stream, args, [&]<class A, class T>(const std::int32_t* chosen, A* probs, T* dense) {
    std::fill_n(dense, experts, narrow<T>(0));
    for (std::int64_t j = 0; j < topk; ++j) {
      if (chosen[j] < 0) continue;
      dense[chosen[j]] = narrow<T>(static_cast<accumulate_t<T>>(probs[j]));
    }
  });
}

void pick(const Stream& stream, const ChoiceArgs& args) {
  const std::int64_t topk = args.experts.shape[1];
  for_choices(stream, args, [&]<class A, class T>(const std::int32_t* chosen, A* probs, T* dense) {
    for (std::int64_t j = 0; j < topk; ++j) {
      probs[j] = chosen[j] < 0 ? A{0} : static_cast<A>(widen(dense[chosen[j]]));
    }
  });
}

RouterKernels kernel_table(Family<RouterKernels>) {
  return {.jitter = jitter,
          .sinkhorn = sinkhorn,
          .route = route,
          .route_backward = route_backward,
          .router_load = router_load,
          .spread = spread,
          .pick = pick,
          .limit = limit};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
