// A collective between ranks that see each other's memory: whether what the members brought fits
// together, and the movement of the data in slices, which any threads may do in any order and side
// by side. Sums run in rank order within a slice, so the bits do not depend on who does it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"

namespace bev {

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kBarrier,
};
const char* name_of(CollectiveKind kind);

// What one member brings. Collectives in place have in == out.
struct CollectivePost {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string label;
  View in, out;
  Reduction reduction = Reduction::kSum;
  int root = 0;
  std::vector<std::int64_t> send = {}, receive = {};  // all_to_all: counts by member
};

// Elements [begin, begin + count) of one part: of the whole, of what one member gives
// (all_gather) or gets (reduce_scatter), or of what one sends to another (all_to_all).
struct CollectiveSlice {
  std::size_t part = 0;
  std::int64_t begin = 0, count = 0;
};

// Throws Error(kComm) unless the posts, one per member in the group's order, fit together.
// `members` are world ranks, for the message.
void check_posts(std::span<const CollectivePost> posts, std::span<const int> members);

// The slices that make up the collective; none where there is nothing to move. No slice reads what
// another writes: a part may lie in its rank's whole, but only at its own place (checked above).
std::vector<CollectiveSlice> cut_slices(std::span<const CollectivePost> posts);
void run_slice(std::span<const CollectivePost> posts, const CollectiveSlice& slice);

}  // namespace bev
