// Elementwise ops: sum, tensors side by side, dropout, activations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "ops/sequence_layout.h"
#include "tensor/activation_kind.h"

namespace bev {

// a + b of equal shape and placement.
Var add(Context& ctx, const Var& a, const Var& b);

// x times a constant.
Var scaled(Context& ctx, const Var& x, double factor);

// a [T, A] and b [T, B] of equal placement -> [T, A + B].
Var join_columns(Context& ctx, const Var& a, const Var& b);

// x for another reader, whose gradient is added after those of the ops recorded from here on.
Var branch(Context& ctx, const Var& x);

// Inverted dropout in training, x itself otherwise; in place, so x's producer must not keep it.
Var dropout(Context& ctx, const Var& x, double p, const SequenceLayout& layout, RandomUse use);

struct ActivationSpec {
  Activation kind = Activation::kGelu;
  bool gated = false;       // x [T, 2F] is gate | up
  bool regenerate = false;  // consumers make the result again instead of keeping it
  GateLimits limits = {};
  bool amax = false;       // find the largest numbers of results and gradients on the way
  bool unwritten = false;  // readers of both make them while they round them to 8 bits
};
Var activation(Context& ctx, const Var& x, const ActivationSpec& spec);
// Of its result for such an x.
Shape activated_shape(const ActivationSpec& spec, const Shape& x);

}  // namespace bev
