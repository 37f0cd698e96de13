// Names of the coefficient sets of the Newton-Schulz iteration (optim/newton_schulz.h).
#pragma once

#include <cstdint>

namespace bev {

enum class NewtonSchulzKind : std::uint8_t {
  kQuintic,
  kSimple,
  kPolarExpress,
  kCans,
  kAol,
  kDeepseekV4,
};

}  // namespace bev
