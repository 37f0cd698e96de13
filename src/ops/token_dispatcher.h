// How tokens reach the ranks that have their experts.
#pragma once

#include <cstdint>

namespace bev {

// All tokens to all ranks that share the experts, or each token to those that have one of its own.
enum class TokenDispatcher : std::uint8_t { kAllGather, kAllToAll };

}  // namespace bev
