// Mixture of experts (MoE) as ops:
//
//   x -> router_logits -> route -> probs, experts          per token
//   x -> permute -> grouped_linear -> weighted_activation -> grouped_linear -> unpermute -> y
//        rows grouped by expert
//
// Probabilities scale the input of the second grouped GEMM rather than its output: its output then
// need not be saved for the backward, and there is no additional rounding.
#pragma once

#include "autograd/tape.h"
#include "ops/elementwise.h"
#include "ops/moe/expert_rows.h"
#include "ops/sequence_layout.h"
#include "tensor/routing_rule.h"

namespace bev {

// Coefficients of the router losses, which act only through gradients. Load-balancing losses count
// tokens over the micro-batch, over each sequence, or over the micro-batches of the global batch up
// to this one.
struct RouterLosses {
  double aux = 0, seq_aux = 0, global_aux = 0, z = 0;

  bool balances() const { return aux > 0 || seq_aux > 0 || global_aux > 0; }
};

struct RouterSpec {
  RoutingRule rule;
  // [E], added to the scores for the choice only; its gradient is the load.
  const Param* expert_bias = nullptr;
  RouterLosses losses;
  RouterDtype dtype = RouterDtype::kModel;
  // In training only:
  bool sinkhorn = false;       // balance the choices over the micro-batch
  double jitter = 0;           // multiply the input by uniform numbers in [1 - jitter, 1 + jitter]
  bool random_logits = false;  // replace the logits by random ones; gradients pass through
};

// x [T, H], replicated or shard(0) over tp; weight [E, H], bias [E] or nullptr -> [T, E] in the
// wide dtype, or f64 if the spec says so. `layout` is that of the micro-batch; nullptr: no noise.
Var router_logits(Context& ctx, const Var& x, const Param& weight, const Param* bias,
                  const RouterSpec& spec = {}, const SequenceLayout* layout = nullptr);

// Router statistics of a step for all layers, including MTP layers. sums [layers, 2 E + 3] in the
// wide dtype: tokens per expert, sum of scores per expert, sum of lse^2, sum of entropy, dropped
// choices. Over all ranks every token counts once.
struct RouterStatistics {
  View sums;
  // [layers, E], where a loss counts over micro-batches: the tokens of
  // each expert in all ranks' micro-batches whose backward is done. The same on every rank.
  Tensor global_counts;
};

struct Routing {
  Var probs;       // [T, k] in the wide dtype
  Tensor experts;  // [T, k] i32
};
// `layout` is that of the micro-batch; nullptr if no losses are wanted.
Routing route(Context& ctx, const Var& logits, const RouterSpec& spec,
              const SequenceLayout* layout);

// x [T, H], copied over ep -> [R, H], the rows of this rank's experts. Consumers recompute the
// result in the backward instead of saving it. With `unwritten` (fused quantisation) it is never
// materialised: consumers gather while they quantise.
Var permute(Context& ctx, const Var& x, const ExpertRows& rows, bool unwritten = false);
// Unpermute: x [R, H] -> [T, H], the sum of the rows of each token, a partial sum over ep. With
// `unwritten`, the gradient of x is never materialised.
Var unpermute(Context& ctx, const Var& x, const ExpertRows& rows, bool unwritten = false);
// activation() with every row of the result multiplied by its probability before the only rounding;
// probs [T, k].
Var weighted_activation(Context& ctx, const Var& x, const ActivationSpec& spec, const Var& probs,
                        const ExpertRows& rows);
// Multiplies every row of x [R, F] by its probability; probs [T, k]. Consumers recompute the
// result.
Var scale_by_probs(Context& ctx, const Var& x, const Var& probs, const ExpertRows& rows);

// Grouped GEMM: x [R, I], weight [E, O, I], bias [E, O] or nullptr -> [R, O]. The split of the
// weight decides as in linear(), one dim further and over etp: dim 1 is column parallel, dim 2 row
// parallel, and without a split the result is placed as x. Runs in FP8 if the weight has a recipe,
// which must be blockwise.
Var grouped_linear(Context& ctx, const Var& x, const ExpertRows& rows, const Param& weight,
                   const Param* bias);

// y[t] += sum over j of probs[t, j] * bias[experts[t, j]], in place: the producer of y must not
// have saved it. y [T, H], bias [E, H].
Var add_expert_biases(Context& ctx, const Var& y, const Routing& routing, const Param& bias);

}  // namespace bev
