// The operations of a group, for messages and for ranks that check that they meet in the same one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace bev {

enum class GroupOp : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kSend,
  kReceive,
  kBarrier,
};

constexpr const char* name_of(GroupOp op) {
  constexpr std::array kNames = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                 "all_to_all", "send",       "receive",        "barrier"};
  return kNames.at(static_cast<std::size_t>(op));
}

}  // namespace bev
