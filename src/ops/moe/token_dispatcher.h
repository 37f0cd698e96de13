// MoE token dispatcher: how tokens reach the ranks that hold their experts.
#pragma once

#include <cstdint>

namespace bev {

// Send all tokens to all ranks that share the experts, or each token only to the ranks of its
// experts.
enum class TokenDispatcher : std::uint8_t { kAllGather, kAllToAll };

struct ExpertParallel {
  TokenDispatcher dispatcher = TokenDispatcher::kAllToAll;
  bool overlap_shared = false;  // overlap the shared expert with the exchange
  bool yields_to_partner =
      false;  // overlap another micro-batch, if there is one (autograd/interleaved_backward.h)
  // Fixed exchange sizes in training steps: this factor times the size for an even load. 0: exact
  // sizes.
  double rank_capacity = 0;
};

}  // namespace bev
