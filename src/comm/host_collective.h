// A collective between ranks that see each other's memory: whether what the members brought fits
// together, and what is to be moved. On the host it is moved in slices, which any threads may do in
// any order and side by side. Sums run in rank order, so the bits do not depend on who does it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"

namespace bev {

class PeerMoment;

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
  std::shared_ptr<const PeerMoment> ready = nullptr;  // when the views may be used; null: at once
};

// Throws Error(kComm) unless the posts, one per member in the group's order, fit together.
// `members` are world ranks, for the message.
void check_posts(std::span<const CollectivePost> posts, std::span<const int> members);

// `count` elements, each the reduction of those of the sources, written to all targets.
struct CollectivePart {
  std::int64_t count = 0;
  std::size_t first = 0;  // in the plan's addresses: the sources, then the targets
  std::size_t sources = 0, targets = 0;
};

// All that a collective moves. No part reads what another writes: a part may lie in its rank's
// whole, but only at its own place (checked above).
struct CollectivePlan {
  Dtype dtype = Dtype::kF32;
  Reduction reduction = Reduction::kSum;
  std::vector<CollectivePart> parts;
  std::vector<std::byte*> addresses;

  std::span<std::byte* const> sources(const CollectivePart& part) const {
    return std::span(addresses).subspan(part.first, part.sources);
  }
  std::span<std::byte* const> targets(const CollectivePart& part) const {
    return std::span(addresses).subspan(part.first + part.sources, part.targets);
  }
};
// Of posts that fit together. Parts without elements are left out.
CollectivePlan plan_collective(std::span<const CollectivePost> posts);

// Elements [begin, begin + count) of one part.
struct CollectiveSlice {
  std::size_t part = 0;
  std::int64_t begin = 0, count = 0;
};
std::vector<CollectiveSlice> cut_slices(const CollectivePlan& plan);
// In host memory. Must not fail: other members wait for it without a timeout.
void run_slice(const CollectivePlan& plan, const CollectiveSlice& slice) noexcept;

}  // namespace bev
