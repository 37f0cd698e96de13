// Mixture of experts as ops:
//
//   x -> router_logits -> route -> probs, experts          of each token
//   x -> permute -> grouped_linear -> weighed_activation -> grouped_linear -> combine -> y
//        rows in the order of experts
//
// Probabilities multiply what goes into the last product, not what comes out: its result is then
// not kept for the backward, and rows are rounded no more often.
#pragma once

#include "autograd/tape.h"
#include "ops/elementwise.h"
#include "ops/expert_rows.h"
#include "ops/sequence_layout.h"
#include "tensor/routing_rule.h"

namespace bev {

// Coefficients of losses on the choice; they act on gradients alone. Those of balance count over
// the micro-batch, over each sequence, or over the micro-batches of the global batch up to this
// one.
struct RouterLosses {
  double aux = 0, seq_aux = 0, global_aux = 0, z = 0;

  bool balances() const { return aux > 0 || seq_aux > 0 || global_aux > 0; }
};

struct RouterSpec {
  RoutingRule rule;
  const Param* expert_bias = nullptr;  // [E], added for the choice; its gradient is the load
  RouterLosses losses;
  RouterDtype dtype = RouterDtype::kModel;
  // While training:
  bool sinkhorn = false;       // choices are balanced over the micro-batch
  double jitter = 0;           // the input is multiplied by numbers in [1 - jitter, 1 + jitter]
  bool random_logits = false;  // in the place of the logits, whose gradient passes
};

// x [T, H], whole or shard(0) over tp; weight [E, H], bias [E] or nullptr -> [T, E] in the wide
// dtype, or f64 where the spec says so. `layout` is that of the micro-batch; nullptr: without
// noise.
Var router_logits(Context& ctx, const Var& x, const Param& weight, const Param* bias,
                  const RouterSpec& spec = {}, const SequenceLayout* layout = nullptr);

// Of the routers of a step, in all layers with those behind the last. sums [layers, 2 E + 3] in the
// wide dtype: the tokens of each expert, the sums of their scores, of lse^2 and of the entropy, and
// the choices that were dropped. Over all ranks every token counts once.
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
// `layout` is that of the micro-batch; nullptr where no loss is wanted.
Routing route(Context& ctx, const Var& logits, const RouterSpec& spec,
              const SequenceLayout* layout);

// x [T, H], copied over ep -> [R, H], the rows of this rank's experts. Consumers make the result
// again instead of keeping it. With `unwritten` all readers gather it while they round it to 8
// bits.
Var permute(Context& ctx, const Var& x, const ExpertRows& rows, bool unwritten = false);
// x [R, H] -> [T, H], the sums of each token's rows: a partial sum over ep. `unwritten` as above,
// of the gradient.
Var combine(Context& ctx, const Var& x, const ExpertRows& rows, bool unwritten = false);
// activation() with every row of the result times its probability, rounded once; probs [T, k].
Var weighed_activation(Context& ctx, const Var& x, const ActivationSpec& spec, const Var& probs,
                       const ExpertRows& rows);
// Every row of x [R, F] times its probability; probs [T, k]. As permute.
Var weigh(Context& ctx, const Var& x, const Var& probs, const ExpertRows& rows);

// x [R, I], weight [E, O, I], bias [E, O] or nullptr -> [R, O]. The weight's split decides as in
// linear(), one dim further and over etp: over dim 1 column parallel, over dim 2 row parallel, not
// split: the result is placed as x. In 8-bit floats where the weight's recipe says so, which must
// be of blocks.
Var grouped_linear(Context& ctx, const Var& x, const ExpertRows& rows, const Param& weight,
                   const Param* bias);

// y[t] += the sum over j of probs[t, j] * bias[experts[t, j]], in place: y's producer must not keep
// it. y [T, H], bias [E, H].
Var add_expert_biases(Context& ctx, const Var& y, const Routing& routing, const Param& bias);

}  // namespace bev
