// Norms of queries and keys.
#pragma once

#include <cstdint>

namespace bev {

// Over each head, before or after the rotation, the latter also without weights; or over all heads
// of a token together, before it.
enum class QkNorm : std::uint8_t { kHead, kHeadAfterRope, kUnitAfterRope, kWidth };

}  // namespace bev
