// Router of a mixture of experts: top-k choice, balancing losses, Sinkhorn, capacity.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/random_rows.h"
#include "tensor/routing_rule.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// Input jitter: y = x * (1 + epsilon (2 u - 1)) with u uniform. Applied to dy with the same random
// rows it is the backward. x, y [T, H] may alias.
struct JitterArgs {
  View x, y;
  double epsilon = 0;
  RandomRows random;
};

// Sinkhorn balancing over all rows of logits [T, E]: bias[e] = log(d[e]), where column factors d
// and row factors make exp(logits) sum to 1 / E in each column and 1 / T in each row. As in
// Megatron, iterates until the mean change of d is below 1e-4 and adds 1e-8 to divisors. If
// rounding keeps a large d moving, it stops after kSinkhornRounds.
inline constexpr int kSinkhornRounds = 1000;
struct SinkhornArgs {
  View logits, bias;  // the same dtype
};

// Top-k of score + bias; among equals the lower expert comes first. logits [T, E] and probs [T, k]
// in f32 (f64), experts [T, k] i32 with the best first; bias [E] of any floating dtype, or empty.
struct RouteArgs {
  View logits, bias = {}, experts, probs;
  RoutingRule rule;
};

// Auxiliary load-balancing loss over groups of tokens: coefficient * E / (k n^2) * sum over experts
// of count * (sum of scores), where the group has n tokens; it counts as n tokens. Scores are the
// softmax, or other scores normalised to sum to 1.
struct BalanceTerm {
  View counts;  // [G, E], dtype of logits: tokens of the group that chose each
  const std::int32_t* group = nullptr;  // [T] group of each token; null: all are in group 0
  double coefficient = 0;
};

// dlogits from dprobs (empty: none), plus the gradient of the balancing losses and of the z-loss,
// z_coefficient * lse(logits)^2 per token, both times *factor (device).
struct RouteBackwardArgs {
  View dprobs, logits, experts, dlogits;
  RoutingRule rule;
  std::span<const BalanceTerm> balance;
  double z_coefficient = 0;
  const double* factor = nullptr;
};

// counts [G, E]: number of tokens of group g that chose e. Over all tokens: scores [E], sums of
// their scores; totals [2], sums of lse^2 and of the entropy of the scores. All have the dtype of
// logits; sums have a fixed order.
struct RouterLoadArgs {
  View logits, experts;
  const std::int32_t* group = nullptr;  // as in BalanceTerm
  RoutingRule rule;
  View counts, scores, totals;  // scores and totals may be empty
};

// Converts between per-choice values and a dense matrix with a column per expert: spread writes
// dense, with zeros for experts that were not chosen; pick writes probs, zero where the expert is
// -1. probs, experts [T, k]; dense [T, E] of any floating dtype.
struct ChoiceArgs {
  View probs, experts, dense;
};

// Expert capacity: each expert keeps the `capacity` choices of the largest probability or, if probs
// is empty, of the smallest position; ties go to earlier tokens. kept is experts with -1 for
// dropped choices, *dropped their number.
struct LimitArgs {
  View experts, kept;                       // [T, k] i32
  View probs = {};                          // [T, k] in f32 (f64), non-negative; or empty
  const std::int32_t* positions = nullptr;  // [T], used without probs
  View dropped;                             // [1] in f32 (f64)
  std::int64_t expert_count = 0, capacity = 0;
};

struct RouterKernels {
  void (*jitter)(const Stream&, const JitterArgs&);
  void (*sinkhorn)(const Stream&, const SinkhornArgs&);
  void (*route)(const Stream&, const RouteArgs&);
  void (*route_backward)(const Stream&, const RouteBackwardArgs&);
  void (*router_load)(const Stream&, const RouterLoadArgs&);
  void (*spread)(const Stream&, const ChoiceArgs&);
  void (*pick)(const Stream&, const ChoiceArgs&);
  void (*limit)(const Stream&, const LimitArgs&);
};

}  // namespace bev
