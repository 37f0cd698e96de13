// The router of a mixture of experts: how tokens choose experts, and what keeps the choice
// balanced.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/random_rows.h"
#include "tensor/routing_rule.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// y = x * (1 + epsilon (2 u - 1)) with u uniform; its own backward as dropout is. x, y [T, H], may
// alias.
struct JitterArgs {
  View x, y;
  double epsilon = 0;
  RandomRows random;
};

// What balances the choices of all rows of logits [T, E]: bias[e] = log(d[e]), where d and a factor
// of each row make the sums of exp(logits) times both 1 / E for columns and 1 / T for rows. As
// Megatron's sinkhorn: until d changes by less than 1e-4 in the mean; 1e-8 is added to divisors.
// Where rounding keeps a large d moving it ends after kSinkhornRounds.
inline constexpr int kSinkhornRounds = 1000;
struct SinkhornArgs {
  View logits, bias;  // of one dtype
};

// Chooses by score + bias; equal ones: the lower number first. logits [T, E] and probs [T, k] in
// f32 (f64), experts [T, k] i32, the best first; bias [E] of any floating dtype, or empty.
struct RouteArgs {
  View logits, bias, experts, probs;
  RoutingRule rule;
};

// A balancing loss over groups of tokens: coefficient * E / (k n^2) * the sum over experts of
// count * sum of scores, n being the group's tokens; it weighs as much as n tokens do. Scores are
// the softmax, or others over their sum.
struct BalanceTerm {
  View counts;                          // [G, E] as logits: tokens of the group that chose each
  const std::int32_t* group = nullptr;  // [T] of each token; null: all are of group 0
  double coefficient = 0;
};

// The gradient of the logits from that of the probabilities (empty: none), and from the balancing
// losses and z_coefficient * lse(logits)^2 of every token, both times *factor (device).
struct RouteBackwardArgs {
  View dprobs, logits, experts, dlogits;
  RoutingRule rule;
  std::span<const BalanceTerm> balance;
  double z_coefficient = 0;
  const double* factor = nullptr;
};

// counts [G, E]: how many tokens of group g chose e. Over all tokens: scores [E], the sums of their
// scores for e, and totals [2], those of lse^2 and of the entropy of the scores. All as logits;
// sums have a fixed order.
struct RouterLoadArgs {
  View logits, experts;
  const std::int32_t* group = nullptr;  // as in BalanceTerm
  RoutingRule rule;
  View counts, scores, totals;  // scores and totals may be empty
};

// Between numbers of choices and a matrix with a column for each expert: spread makes dense, with
// zeros where an expert is not chosen; pick makes probs, zeros where an expert is -1. probs,
// experts [T, k]; dense [T, E] of any floating dtype.
struct ChoiceArgs {
  View probs, experts, dense;
};

// Expert capacity: each expert keeps the `capacity` choices of the largest probability or, where
// probs is empty, of the smallest position; ties go to earlier tokens. kept is experts with -1 in
// the place of dropped choices, *dropped their number.
struct LimitArgs {
  View experts, kept;                       // [T, k] i32
  View probs = {};                          // [T, k] in f32 (f64), not below 0; or empty
  const std::int32_t* positions = nullptr;  // [T], without probs
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
