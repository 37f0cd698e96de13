// Collectives between ranks that share an address space: checks that the members' calls match, and
// plans the data movement. On the host the plan is executed in slices, by any threads in any order
// and concurrently. Reductions add in rank order, so the bits do not depend on the thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/group_op.h"

namespace bev {

class PeerEvent;

// One member's arguments. Collectives in place have in == out.
struct CollectivePost {
  GroupOp kind = GroupOp::kBarrier;
  std::string label;
  View in, out;
  Reduction reduction = Reduction::kSum;
  int root = 0;
  std::vector<std::int64_t> send = {}, receive = {};  // all_to_all: element counts by member
  std::shared_ptr<const PeerEvent> ready = nullptr;   // event before use of the views; null: none
};

// Throws Error(kComm) unless the posts, one per member in the group's order, match. `members` are
// world ranks, for the message.
void check_posts(std::span<const CollectivePost> posts, std::span<const int> members);

// `count` elements: each is the reduction of the sources' elements, and is written to all targets.
struct CollectivePart {
  std::int64_t count = 0;
  std::size_t first = 0;  // index in the plan's addresses: the sources, then the targets
  std::size_t sources = 0, targets = 0;
};

// All data movement of a collective. No part reads what another part writes: if a member's part
// lies inside its whole buffer, check_posts requires that it lies at its own offset.
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
// Plans matching posts. Empty parts are omitted.
CollectivePlan plan_collective(std::span<const CollectivePost> posts);

// Elements [begin, begin + count) of one part; the unit of work of a thread.
struct CollectiveSlice {
  std::size_t part = 0;
  std::int64_t begin = 0, count = 0;
};
std::vector<CollectiveSlice> cut_slices(const CollectivePlan& plan);
// Executes a slice in host memory. It must not fail: other members wait for it without a timeout.
void run_slice(const CollectivePlan& plan, const CollectiveSlice& slice) noexcept;

}  // namespace bev
