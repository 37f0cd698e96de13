// How tokens reach the ranks that have their experts.
#pragma once

#include <cstdint>

namespace bev {

// All tokens to all ranks that share the experts, or each token to those that have one of its own.
enum class TokenDispatcher : std::uint8_t { kAllGather, kAllToAll };

struct ExpertParallel {
  TokenDispatcher dispatcher = TokenDispatcher::kAllToAll;
  bool overlap_shared = false;  // the shared expert runs beside the exchange
  bool gives_way = false;       // and another micro-batch, where one is there (autograd/partner.h)
  // Exchanges of training steps have a fixed size: this factor times what even use of the experts
  // needs. 0: the size they need.
  double rank_capacity = 0;
};

}  // namespace bev
