// Elementwise ops: sum, column concatenation, dropout, activations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "ops/sequence_layout.h"
#include "tensor/activation_kind.h"

namespace bev {

// a + b of equal shape and placement. Of an f32 a and a b of 16 bits (a residual stream and what is
// added to it) the sum is f32.
Var add(Context& ctx, const Var& a, const Var& b);

// x in another floating dtype; its gradient is converted back. x itself if it has that dtype.
Var convert(Context& ctx, const Var& x, Dtype dtype);

// x times a constant.
Var scaled(Context& ctx, const Var& x, double factor);

// a [T, A] and b [T, B] of equal placement -> [T, A + B].
Var join_columns(Context& ctx, const Var& a, const Var& b);

// Returns x as a new Var whose gradient is added to x after the gradients of all ops recorded
// later.
Var branch(Context& ctx, const Var& x);

// Inverted dropout in training, x itself otherwise. Works in place: the producer of x must not have
// saved it.
Var dropout(Context& ctx, const Var& x, double p, const SequenceLayout& layout, RandomUse use);

// The same as a new tensor; x may be cut by columns over tp, of which this rank's first is `first`.
struct DropoutSpec {
  double p = 0;
  RandomUse use = RandomUse::kAdapterDropout;
  std::int64_t head = 0;  // of the random stream
  std::int64_t first = 0;
};
Var dropout_copy(Context& ctx, const Var& x, const SequenceLayout& layout, const DropoutSpec& spec);

struct ActivationSpec {
  Activation kind = Activation::kGelu;
  bool gated = false;       // x [T, 2F] is gate | up
  bool regenerate = false;  // consumers recompute the result in the backward instead of saving it
  GateLimits limits = {};
  bool amax = false;       // compute the amax of result and input gradient in the kernels
  bool unwritten = false;  // fused quantisation: result and input gradient are never materialised
};
Var activation(Context& ctx, const Var& x, const ActivationSpec& spec);
// Shape of the result for an input of shape x.
Shape activated_shape(const ActivationSpec& spec, const Shape& x);

}  // namespace bev
