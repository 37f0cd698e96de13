// Activation functions of an MLP.
#pragma once

#include <cstdint>

namespace bev {

// kXielu has learned coefficients, and so an op of its own (ops/xielu.h).
enum class Activation : std::uint8_t {
  kGelu,
  kGeluTanh,
  kSilu,
  kRelu,
  kSquaredRelu,
  kQuickGelu,
  kTanh,
  kXielu
};

// Clamping of a gated activation: y = act(min(gate, clamp)) * (clip(up, -clamp, clamp) + offset).
// clamp 0 means no clamping.
struct GateLimits {
  double clamp = 0, offset = 0;
};

}  // namespace bev
