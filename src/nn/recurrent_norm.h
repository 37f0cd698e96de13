// Gated norms of recurrent mixers.
#pragma once

#include <cstdint>

namespace bev {

// None (the gate alone), over each group of heads that share B and C, over the whole width, or over
// each head with a weight that all heads share.
enum class RecurrentNorm : std::uint8_t { kNone, kGroup, kWidth, kHead };

}  // namespace bev
