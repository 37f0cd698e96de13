// RMSNorm and LayerNorm over the last dim, optionally fused with the residual addition, and QK norm
// (RMSNorm of each head of q and k, or of their whole width).
#pragma once

#include <cstdint>
#include <utility>

#include "autograd/tape.h"

namespace bev {

struct NormSpec {
  const Param* weight = nullptr;
  const Param* bias = nullptr;  // nullptr: none
  bool center = false;          // LayerNorm subtracts the mean, RMSNorm does not
  double epsilon = 1e-5;
  double offset = 0;        // 1: multiplies by 1 + weight
  bool regenerate = false;  // consumers recompute the result in the backward instead of saving it
  bool amax = false;        // compute the amax of result and input gradient in the kernels
  bool unwritten = false;   // fused quantisation: the result is never materialised
};

// x [T, H] -> normalised [T, H] in the model's dtype; x may be f32 in a model of 16 bits.
Var norm(Context& ctx, const Var& x, const NormSpec& spec);

struct AddNorm {
  Var sum;         // x + residual, in the dtype of the residual
  Var normalised;  // norm(sum)
};
AddNorm add_norm(Context& ctx, const Var& x, const Var& residual, const NormSpec& spec);

struct HeadNormSpec {
  // [D], shared by the heads; nullptr: no weights.
  const Param *q_weight = nullptr, *k_weight = nullptr;
  std::int64_t q_heads = 0, kv_heads = 0, head_size = 0;
  double epsilon = 1e-6;
  double offset = 0;
};
// RMSNorm of every q and k head inside fused rows [T, (N + 2K) D].
Var head_norm(Context& ctx, const Var& qkv, const HeadNormSpec& spec);

struct WidthNormSpec {
  const Param *q_weight = nullptr, *k_weight = nullptr;  // [N D] and [K D], split over tp
  std::int64_t q_columns = 0, k_columns = 0;             // of this rank
  double epsilon = 1e-6;
  double offset = 0;
};
// RMSNorm of all q columns of a token together, and of all its k columns, inside fused rows q | k |
// v. Collective over tp: two sums per token are added over its ranks, in either direction.
Var width_norm(Context& ctx, const Var& qkv, const WidthNormSpec& spec);

}  // namespace bev
