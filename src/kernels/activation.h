// MLP activations, plain or gated (GLU variants such as SwiGLU), with optional router
// probabilities.
#pragma once

#include <cstdint>

#include "tensor/activation_kind.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// Router probabilities fused into an expert's activation: row r of y is multiplied by
// probs[order[r]] before it is rounded, and is zero where order[r] is -1.
struct RowWeights {
  View probs;                           // [T, k] in f32 (f64)
  const std::int32_t* order = nullptr;  // slot of each row; null: no factors
};

// Plain: x, y [T, F], y = act(x). Gated: x [T, 2F] holds gate | up, y [T, F] = act(gate) * up.
// Computed in the accumulate type and rounded once.
struct ActivationForwardArgs {
  View x, y;
  Activation kind = Activation::kGelu;
  bool gated = false;
  GateLimits limits = {};
  // Device. If set, becomes max(*amax, max |y|), with the NaN rule of QuantizeKernels::amax.
  float* amax = nullptr;
  RowWeights weights = {};
};

// dx has the shape of x and may alias it; dy is [T, F]. With weights, dprobs[order[r]] is the dot
// product of dy[r] and the unweighted y[r]; slots without a row get zero.
struct ActivationBackwardArgs {
  View dy, x, dx;
  Activation kind = Activation::kGelu;
  bool gated = false;
  GateLimits limits = {};
  float* amax = nullptr;  // same as in the forward, over dx; not supported with weights
  RowWeights weights = {};
  View dprobs = {};  // shape and dtype of weights.probs
};

// xIELU (arXiv 2411.13010): with p = softplus(alpha_p), n = beta + softplus(alpha_n),
//   y = p x^2 + beta x                              where x > 0
//   y = n (expm1(min(x, eps)) - x) + beta x         elsewhere.
// The coefficients are [1] of x's dtype.
struct XieluCoefficients {
  View alpha_p, alpha_n, beta, eps;
};
struct XieluForwardArgs {
  View x, y;
  XieluCoefficients coefficients;
};
// dx may alias dy. dalpha_p, dalpha_n [1] in the gradient dtype = beta * old + new, in an order
// that depends only on the shape; empty: not wanted.
struct XieluBackwardArgs {
  View dy, x, dx;
  XieluCoefficients coefficients;
  View dalpha_p, dalpha_n;
  double p_beta = 0, n_beta = 0;
};

// y = x sigmoid(gate), all of one shape and dtype; y may alias x.
struct SigmoidGateArgs {
  View x, gate, y;
};
// dx may alias dy.
struct SigmoidGateBackwardArgs {
  View dy, x, gate;
  View dx, dgate;
};

struct ActivationKernels {
  void (*forward)(const Stream&, const ActivationForwardArgs&);
  void (*backward)(const Stream&, const ActivationBackwardArgs&);
  void (*xielu_forward)(const Stream&, const XieluForwardArgs&);
  void (*xielu_backward)(const Stream&, const XieluBackwardArgs&);
  void (*sigmoid_gate)(const Stream&, const SigmoidGateArgs&);
  void (*sigmoid_gate_backward)(const Stream&, const SigmoidGateBackwardArgs&);
};

}  // namespace bev
