// Which tokens an expert over capacity drops.
#pragma once

#include <cstdint>

namespace bev {

// Drops the tokens with the smallest probabilities, or the last ones of their samples.
enum class DropPolicy : std::uint8_t { kProbs, kPosition };

}  // namespace bev
