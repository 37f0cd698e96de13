// Activations of the MLP, plain or gated.
#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

enum class Activation : std::uint8_t { kGelu, kGeluTanh, kSilu, kRelu, kSquaredRelu, kQuickGelu };

// How gate and up are limited before they meet: y = act(min(gate, clamp)) * (up limited to
// [-clamp, clamp], plus offset). Of gated activations only; clamp 0: no limit.
struct GateLimits {
  double clamp = 0, offset = 0;
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
};

// dx has x's shape and may alias it; dy is [T, F].
struct ActivationBackwardArgs {
  View dy, x, dx;
  Activation kind = Activation::kGelu;
  bool gated = false;
  GateLimits limits = {};
  float* amax = nullptr;  // likewise, of dx
};

struct ActivationKernels {
  void (*forward)(const Stream&, const ActivationForwardArgs&);
  void (*backward)(const Stream&, const ActivationBackwardArgs&);
};

}  // namespace bev
