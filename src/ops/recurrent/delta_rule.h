// Gated delta rule (Gated DeltaNet) over fused rows q | k | v, [T, N K + N K + M V]: N key heads of
// K dims, M value heads of V dims; kernels/delta_rule.h has the recurrence. Computed by chunks,
// whose states pass on within a document, and under context parallelism from rank to rank:
//
//   all-gather   of every span of tokens: the state that it leaves when it begins with 0, and the
//                matrix by which an entering state reaches the leaving one
//   each rank    carries the states through the spans before its own
//
// The backward does the same with the gradients of states, from the last span to the first.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/tape.h"
#include "ops/recurrent/sequence_spans.h"

namespace bev {

struct DeltaRuleSpec {
  std::int64_t key_heads = 0, value_heads = 0, key_size = 0, value_size = 0;  // of this rank
  std::int64_t chunk = 64;
  double epsilon = 1e-6;  // of the lengths of q and k
};

// qkv in the model's dtype, g and beta [T, M] in the wide dtype.
struct DeltaInputs {
  const Var &qkv, &g, &beta;
};

struct DeltaGates {
  Var g, beta;
};
// Rows b | a, [T, 2 M] -> g = -exp(a_log) softplus(a + dt_bias) and beta = sigmoid(b), wide.
DeltaGates delta_gates(Context& ctx, const Var& gates, const Param& a_log, const Param& dt_bias);

// -> [T, M V], document by document. Decoding: the state is in the first columns of the rows'
// states, which are updated; no gradient.
Var delta_rule(Context& ctx, const DeltaInputs& in, const RecurrentRows& rows,
               const DeltaRuleSpec& spec);

// States as values: entering [R, M, K, V] and leaving ones of the same shape, in the wide dtype.
// Rows of the runs index both; rows that no run leaves are 0.
struct DeltaResult {
  Var out, leaving;
};
DeltaResult delta_rule_with_states(Context& ctx, const DeltaInputs& in, const Var& entering,
                                   std::vector<RecurrentRun> runs, const DeltaRuleSpec& spec);

}  // namespace bev
