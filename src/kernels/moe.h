// Mixture of experts: how tokens choose experts, the order of rows by expert, and products of each
// expert's rows with its own weight. Counts of rows stay on the device: nothing waits for the host.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/elementwise.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus };
// What the product that makes the logits is computed in; at least the model's dtype.
enum class RouterDtype : std::uint8_t { kModel, kF32, kF64 };

// How a token chooses topk of E experts by its logits.
struct RoutingRule {
  std::int64_t topk = 2;
  RouterScore score = RouterScore::kSoftmax;
  bool pre_softmax = false;  // softmax over all experts, not over the chosen ones
  bool normalize = true;     // other scores: those of the chosen are divided by their sum
  bool by_logit = false;     // chosen by logit, whatever the score
  double scaling = 1;        // of the probabilities
  // Experts in equal groups, of which group_topk are open to a token: those whose best
  // `group_experts` scores have the largest sum.
  std::int64_t groups = 1, group_topk = 1, group_experts = 1;
};

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

// Of each expert's choices the first `capacity` are kept: those of the largest probability or,
// where probs is empty, of the smallest position; of equal ones the earlier tokens'. kept is
// experts with -1 in the place of the others, *dropped their number.
struct LimitArgs {
  View experts, kept;                       // [T, k] i32
  View probs = {};                          // [T, k] in f32 (f64), not below 0; or empty
  const std::int32_t* positions = nullptr;  // [T], without probs
  View dropped;                             // [1] in f32 (f64)
  std::int64_t expert_count = 0, capacity = 0;
};

// Which members of etp x ep each token goes to: those that have one of its experts. Ranks of ep
// have contiguous ranges of experts (as shard_range cuts them), each of which has etp members.
// members[t, j etp + i] = etp * (the ep rank of choice j) + i, or -1 where an earlier choice of the
// token is of the same rank, or there is none. counts[m] = tokens for member m, and their choices
// that are of its experts.
struct DispatchArgs {
  View experts;          // [T, k] i32
  View members, counts;  // i32 [T, k etp], [etp ep, 2]
  std::int64_t expert_count = 0, etp = 1;
};

// Rows in the order of expert, then token. Slot t k + j is choice j of token t. order[r] is the
// slot of row r, place[s] the row of slot s or -1, rows of expert first_expert + e are [offsets[e],
// offsets[e + 1]). Slots of other experts (-1 too) get no row; unused rows have order -1.
struct SortRowsArgs {
  View experts;  // [T, k] i32
  std::int64_t first_expert = 0;
  View order, place, offsets;  // i32 [R], [T k], [E + 1]
};

// Gives sorted rows places of which there are as many as `fitted` has, whoever they are of. Rows
// stay where they are or, with blocks, those of expert e begin at e block. A row past the end, or
// past its block, is lost: its slot gets no row. fitted is the new order, -1 where there is no row;
// place follows it, and without blocks offsets too. *lost (f64, device) grows by the lost rows.
struct FitRowsArgs {
  View order, place, offsets;  // of SortRowsArgs
  View fitted;                 // i32 [R]
  std::int64_t block = 0;      // 0: no blocks; otherwise R is E block
  double* lost = nullptr;
};

// rows[r] = x[order[r] / topk], zeros where order is -1. Also of i32, there -1. Order and place say
// the same (SortRowsArgs), for those who walk by row or by token. The gradient of sum_rows.
struct GatherRowsArgs {
  View x, rows;  // [T, H], [R, H]
  const std::int32_t *order = nullptr, *place = nullptr;
  std::int64_t topk = 1;
};

// y[t] = the sum of rows[place[t topk + j]] in the order of j, in f32 (f64), without those of place
// -1. The gradient of gather_rows.
struct SumRowsArgs {
  View rows, y;  // [R, H], [T, H]
  const std::int32_t* place = nullptr;
  std::int64_t topk = 1;
};

// y[r] = x[r] * probs[order[r]]; zeros where order is -1. x, y [R, F] may alias; probs [T, k].
struct WeighRowsArgs {
  View x, y, probs;
  const std::int32_t* order = nullptr;
};

// dx[r] = dy[r] * probs[order[r]] and dprobs[order[r]] = dy[r] . x[r], zeros for slots without a
// row. dx may alias dy.
struct WeighRowsBackwardArgs {
  View dy, x, probs, dx, dprobs;
  const std::int32_t* order = nullptr;
  const std::int32_t* place = nullptr;
};

// Of the rows [offsets[e], offsets[e + 1]) with weight e. x [R, I], w [E, O, I], y [R, O]; dtypes
// as in GemmArgs. Rows past the last offset become zeros in y and dx.
struct GroupedArgs {
  View x, w, y;
  View bias;                              // [E, O]: y = x w^T + bias; empty: none
  const std::int32_t* offsets = nullptr;  // [E + 1], device
  double beta = 0;                        // of dw
  double* squares = nullptr;  // f64, device: grows by the squares of dw; null: not wanted
};

struct MoeKernels {
  void (*jitter)(const Stream&, const JitterArgs&);
  void (*sinkhorn)(const Stream&, const SinkhornArgs&);
  void (*route)(const Stream&, const RouteArgs&);
  void (*route_backward)(const Stream&, const RouteBackwardArgs&);
  void (*router_load)(const Stream&, const RouterLoadArgs&);
  void (*spread)(const Stream&, const ChoiceArgs&);
  void (*pick)(const Stream&, const ChoiceArgs&);
  void (*limit)(const Stream&, const LimitArgs&);
  void (*dispatch)(const Stream&, const DispatchArgs&);
  void (*sort_rows)(const Stream&, const SortRowsArgs&);
  void (*fit_rows)(const Stream&, const FitRowsArgs&);
  void (*gather_rows)(const Stream&, const GatherRowsArgs&);
  void (*sum_rows)(const Stream&, const SumRowsArgs&);
  void (*weigh_rows)(const Stream&, const WeighRowsArgs&);
  void (*weigh_rows_backward)(const Stream&, const WeighRowsBackwardArgs&);
  // y = x w^T (+ bias)
  void (*grouped)(const Stream&, const GroupedArgs&);
  // x = y w
  void (*grouped_input)(const Stream&, const GroupedArgs&);
  // w = beta w + y^T x; an expert without rows gives zeros. bias = beta bias + the sums of y, where
  // there is one (then w may be empty).
  void (*grouped_weight)(const Stream&, const GroupedArgs&);
};

}  // namespace bev
