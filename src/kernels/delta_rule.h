// Gated delta rule (Gated DeltaNet). Each value head has a state S [K, V] that decays by exp(g_t)
// and is corrected along k_t towards v_t:
//
//   S <- exp(g_t) S     u = beta_t (v_t - S^T k_t)     S <- S + k_t u^T     o_t = scale S^T q_t
//
// q and k are normalised to length 1 first. Rows q | k | v have N key heads of K dims in q and in
// k, and M value heads of V dims, M a multiple of N; value head h reads key head h / (M / N).
#pragma once

#include <cstdint>
#include <span>

#include "base/divide.h"
#include "tensor/recurrent_run.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// A row is in at most one run; rows in none are not touched. q and k are multiplied by
// 1 / sqrt(sum of squares + epsilon).
struct DeltaShape {
  std::span<const RecurrentRun> runs;  // host memory
  // Rows in order at which documents begin: within a run the state is zeros there again.
  std::span<const std::int64_t> starts = {};
  std::int64_t key_heads = 0, value_heads = 0, key_size = 0, value_size = 0;
  std::int64_t chunk = 64;  // tokens that are computed by matrix products
  double scale = 1, epsilon = 1e-6;

  std::int64_t key_columns() const { return key_heads * key_size; }
  std::int64_t columns() const { return 2 * key_columns() + value_heads * value_size; }
  std::int64_t state_size() const { return value_heads * key_size * value_size; }
  // Chunks of all runs.
  std::int64_t chunks() const {
    std::int64_t sum = 0;
    for (const RecurrentRun& run : runs) sum += ceil_div(run.count, chunk);
    return sum;
  }
};

// Chunk by chunk in the WY form. A state is M matrices [K, V]. A leaving state is transfer times
// the entering one plus a part that does not depend on it.
struct DeltaForwardArgs {
  DeltaShape shape;
  View qkv;      // [T, N K + N K + M V]
  View g, beta;  // [T, M], accumulate type
  StateRows entering;
  View out;            // [T, M V]; empty: states only
  StateRows leaving;   // may be the memory of `entering`; empty: not wanted
  View transfer = {};  // [leaving rows, M, K, K], accumulate type; empty: not wanted
};

// The same token by token, for a few tokens of many sequences. Each run has a leaving state.
struct DeltaStepArgs {
  DeltaShape shape;
  View qkv, g, beta;
  StateRows entering;
  View out;
  StateRows leaving;  // may be the memory of `entering`
};

// Gradients are overwritten for all rows of the runs.
struct DeltaBackwardArgs {
  DeltaShape shape;
  View qkv, g, beta;
  StateRows entering;
  View dout;
  StateRows dleaving;  // rows as in `leaving`; empty: zero
  View states = {};    // scratch [chunks(), M, K, V], accumulate type
  View dqkv = {};      // empty: of the gradients only those of the entering states
  View dg = {}, dbeta = {};
  StateRows dentering;  // rows as in `entering`; empty: not wanted
};

// States carried over runs that other ranks hold. Consecutive links with one target are a chain:
//   states[target] = add[item]                                        for the first,
//   states[target] = transfer[item] states[target] + add[item]        for the others,
// with transfer[item] transposed if `transpose`.
struct DeltaLink {
  std::int64_t target = 0, item = 0;
};
struct DeltaLinksArgs {
  std::span<const DeltaLink> links;  // host memory
  View transfer;                     // [items, M, K, K], accumulate type
  View add;                          // [items, M, K, V]
  View states;                       // [targets, M, K, V]
  bool transpose = false;
};

// beta = sigmoid(b), g = -exp(a_log) softplus(a + dt_bias); rows of `gates` are b | a, [T, 2 M].
// Computed in the accumulate type, which g and beta have.
struct DeltaGatesArgs {
  View gates;
  View a_log, dt_bias;  // [M], any floating dtype
  View g, beta;
};
// da_log, ddt_bias [M] in the gradient dtype = old * the factor + new, in an order that depends
// only on the shape; empty: not wanted.
struct DeltaGatesBackwardArgs {
  View gates, a_log, dt_bias;
  View dg, dbeta;
  View dgates;
  View da_log, ddt_bias;
  double a_log_beta = 0, dt_bias_beta = 0;
};

struct DeltaRuleKernels {
  void (*forward)(const Stream&, const DeltaForwardArgs&);
  void (*step)(const Stream&, const DeltaStepArgs&);
  void (*backward)(const Stream&, const DeltaBackwardArgs&);
  void (*link)(const Stream&, const DeltaLinksArgs&);
  void (*gates)(const Stream&, const DeltaGatesArgs&);
  void (*gates_backward)(const Stream&, const DeltaGatesBackwardArgs&);
};

}  // namespace bev
