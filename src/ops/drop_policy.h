// Whom an expert drops that more tokens choose than it takes.
#pragma once

#include <cstdint>

namespace bev {

// Those of the smallest probabilities, or those that come last in their samples.
enum class DropPolicy : std::uint8_t { kProbs, kPosition };

}  // namespace bev
