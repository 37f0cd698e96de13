// The activations of an MLP.
#pragma once

#include <cstdint>

namespace bev {

enum class Activation : std::uint8_t { kGelu, kGeluTanh, kSilu, kRelu, kSquaredRelu, kQuickGelu };

// How gate and up are limited before they meet: y = act(min(gate, clamp)) * (up limited to
// [-clamp, clamp], plus offset). Of gated activations only; clamp 0: no limit.
struct GateLimits {
  double clamp = 0, offset = 0;
};

}  // namespace bev
