// Activations of the MLP, plain or gated.
#pragma once

#include <cstdint>

#include "tensor/activation_kind.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// Factors of the rows of y, for experts: row r is also multiplied by probs[order[r]], before it is
// rounded; it is zero where order is -1.
struct RowWeights {
  View probs;                           // [T, k] in f32 (f64)
  const std::int32_t* order = nullptr;  // of each row; null: no factors
};

// Plain: x, y [T, F], y = act(x). Gated: x [T, 2F] holds gate | up, y [T, F] = act(gate) * up.
// Computed in the accumulate type and rounded once.
struct ActivationForwardArgs {
  View x, y;
  Activation kind = Activation::kGelu;
  bool gated = false;
  GateLimits limits = {};
  // Device: becomes max(*amax, |y|), as QuantizeKernels::amax counts; null: not wanted.
  float* amax = nullptr;
  RowWeights weights = {};
};

// dx has x's shape and may alias it; dy is [T, F]. With weights dprobs[order[r]] becomes the sum
// over the row of dy times what y is without its factor, zero for slots without a row.
struct ActivationBackwardArgs {
  View dy, x, dx;
  Activation kind = Activation::kGelu;
  bool gated = false;
  GateLimits limits = {};
  float* amax = nullptr;  // likewise, of dx; not with weights
  RowWeights weights = {};
  View dprobs = {};  // as weights.probs
};

struct ActivationKernels {
  void (*forward)(const Stream&, const ActivationForwardArgs&);
  void (*backward)(const Stream&, const ActivationBackwardArgs&);
};

}  // namespace bev
