#include "comm/host_collective.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "comm/reduce.h"

namespace bev {

namespace {

using Posts = std::span<const CollectivePost>;

// Small enough that several threads share a collective and that values stay in cache between the
// reduction and the copies, large enough to amortise claiming a slice.
constexpr std::int64_t kSliceBytes = 128 * 1024;

void* at(const View& view, std::int64_t element) {
  return static_cast<std::byte*>(view.data) +
         static_cast<std::size_t>(element) * size_of(view.dtype);
}

std::int64_t sum_before(std::span<const std::int64_t> counts, std::size_t end) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(end),
                         std::int64_t{0});
}

// Number of elements of `side` of the members before `end`.
std::int64_t elements_before(Posts posts, View CollectivePost::*side, std::size_t end) {
  std::int64_t sum = 0;
  for (const CollectivePost& post : posts.first(end)) sum += (post.*side).numel();
  return sum;
}

std::byte* address_in(const View& view, std::int64_t element) {
  return static_cast<std::byte*>(at(view, element));
}

// The call as text, for the error message.
std::string meeting_text(const CollectivePost& post) {
  std::string text = concat(name_of(post.kind), " of ", post.label, " (", name_of(post.in.dtype));
  if (post.kind == GroupOp::kBroadcast) text += concat(", from member ", post.root);
  if (post.reduction == Reduction::kMax) text += ", maximum";
  return text + ")";
}

void check_same(Posts posts, std::span<const int> members) {
  const CollectivePost& first = posts.front();
  for (std::size_t i = 1; i < posts.size(); ++i) {
    const CollectivePost& other = posts[i];
    bool same = first.kind == other.kind && first.label == other.label &&
                first.in.dtype == other.in.dtype && first.reduction == other.reduction &&
                first.root == other.root;
    BEV_CHECK(same, ErrorKind::kComm, "ranks meet in different collectives: rank ", members[0],
              " in ", meeting_text(first), ", rank ", members[i], " in ", meeting_text(other));
  }
}

void check_equal_counts(Posts posts) {
  const CollectivePost& first = posts.front();
  for (const CollectivePost& other : posts) {
    BEV_CHECK(other.in.numel() == first.in.numel(), ErrorKind::kComm, name_of(first.kind), " of ",
              first.label, ": ranks bring ", first.in.shape, " and ", other.in.shape);
  }
}

bool overlap(const View& a, const View& b) {
  if (a.bytes() == 0 || b.bytes() == 0) return false;
  std::less<const void*> before;
  return before(a.data, at(b, b.numel())) && before(b.data, at(a, a.numel()));
}

// Checks that the parts add up to every member's whole, and that a part inside its whole lies at
// its own offset.
void check_parts(Posts posts, std::span<const int> members, View CollectivePost::*part,
                 View CollectivePost::*whole) {
  std::int64_t total = elements_before(posts, part, posts.size());
  for (std::size_t i = 0; i < posts.size(); ++i) {
    const CollectivePost& post = posts[i];
    BEV_CHECK((post.*whole).numel() == total, ErrorKind::kComm, name_of(post.kind), " of ",
              post.label, ": rank ", members[i], " has ", (post.*whole).shape, " for parts of ",
              total, " elements in all");
    bool apart = !overlap(post.*part, post.*whole);
    BEV_CHECK(apart || (post.*part).data == at(post.*whole, elements_before(posts, part, i)),
              ErrorKind::kComm, name_of(post.kind), " of ", post.label, ": the part of rank ",
              members[i], " lies in its whole, but not at its own place");
  }
}

void check_exchange(Posts posts, std::span<const int> members) {
  for (std::size_t i = 0; i < posts.size(); ++i) {
    const CollectivePost& post = posts[i];
    bool fits = post.send.size() == posts.size() && post.receive.size() == posts.size() &&
                sum_before(post.send, post.send.size()) == post.in.numel() &&
                sum_before(post.receive, post.receive.size()) == post.out.numel();
    BEV_CHECK(fits, ErrorKind::kComm, "all_to_all of ", post.label, ": the counts of rank ",
              members[i], " do not fill ", post.in.shape, " and ", post.out.shape);
    BEV_CHECK(!overlap(post.in, post.out), ErrorKind::kComm, "all_to_all of ", post.label,
              ": input and output of rank ", members[i], " overlap");
  }
  for (std::size_t i = 0; i < posts.size(); ++i) {
    for (std::size_t j = 0; j < posts.size(); ++j) {
      BEV_CHECK(posts[i].send[j] == posts[j].receive[i], ErrorKind::kComm, "all_to_all of ",
                posts[i].label, ": rank ", members[i], " sends ", posts[i].send[j],
                " elements, rank ", members[j], " expects ", posts[j].receive[i]);
    }
  }
}

}  // namespace

void check_posts(Posts posts, std::span<const int> members) {
  check_same(posts, members);
  switch (posts.front().kind) {
    case GroupOp::kAllReduce:
    case GroupOp::kBroadcast:
      return check_equal_counts(posts);
    case GroupOp::kAllGather:
      return check_parts(posts, members, &CollectivePost::in, &CollectivePost::out);
    case GroupOp::kReduceScatter:
      return check_parts(posts, members, &CollectivePost::out, &CollectivePost::in);
    case GroupOp::kAllToAll:
      return check_exchange(posts, members);
    case GroupOp::kSend:
    case GroupOp::kReceive:
    case GroupOp::kBarrier:
      return;
  }
}

namespace {

// Builds a plan part by part: first the part's sources and targets, then end_part with their
// element count.
class PlanWriter {
 public:
  explicit PlanWriter(Posts posts) {
    plan_.dtype = posts.front().in.dtype;
    plan_.reduction = posts.front().reduction;
  }
  void source(const View& view, std::int64_t element) {
    sources_.push_back(address_in(view, element));
  }
  void target(const View& view, std::int64_t element) {
    targets_.push_back(address_in(view, element));
  }
  void end_part(std::int64_t count) {
    // A single source that is also a target is already in place.
    if (sources_.size() == 1) std::erase(targets_, sources_.front());
    if (count > 0 && !targets_.empty()) {
      plan_.parts.push_back({count, plan_.addresses.size(), sources_.size(), targets_.size()});
      plan_.addresses.insert(plan_.addresses.end(), sources_.begin(), sources_.end());
      plan_.addresses.insert(plan_.addresses.end(), targets_.begin(), targets_.end());
    }
    sources_.clear();
    targets_.clear();
  }
  CollectivePlan take() { return std::move(plan_); }

 private:
  CollectivePlan plan_;
  std::vector<std::byte*> sources_, targets_;
};

void plan_exchange(Posts posts, PlanWriter& plan) {
  for (std::size_t from = 0; from < posts.size(); ++from) {
    for (std::size_t to = 0; to < posts.size(); ++to) {
      plan.source(posts[from].in, sum_before(posts[from].send, to));
      plan.target(posts[to].out, sum_before(posts[to].receive, from));
      plan.end_part(posts[from].send[to]);
    }
  }
}

}  // namespace

CollectivePlan plan_collective(Posts posts) {
  PlanWriter plan(posts);
  const CollectivePost& first = posts.front();
  std::int64_t begin = 0;
  switch (first.kind) {
    case GroupOp::kAllReduce:
      for (const CollectivePost& post : posts) plan.source(post.in, 0);
      for (const CollectivePost& post : posts) plan.target(post.in, 0);
      plan.end_part(first.in.numel());
      break;
    case GroupOp::kAllGather:
      for (const CollectivePost& part : posts) {
        plan.source(part.in, 0);
        for (const CollectivePost& post : posts) plan.target(post.out, begin);
        plan.end_part(part.in.numel());
        begin += part.in.numel();
      }
      break;
    case GroupOp::kReduceScatter:
      for (const CollectivePost& part : posts) {
        for (const CollectivePost& post : posts) plan.source(post.in, begin);
        plan.target(part.out, 0);
        plan.end_part(part.out.numel());
        begin += part.out.numel();
      }
      break;
    case GroupOp::kBroadcast:
      plan.source(posts[static_cast<std::size_t>(first.root)].in, 0);
      for (const CollectivePost& post : posts) plan.target(post.in, 0);
      plan.end_part(first.in.numel());
      break;
    case GroupOp::kAllToAll:
      plan_exchange(posts, plan);
      break;
    case GroupOp::kSend:
    case GroupOp::kReceive:
    case GroupOp::kBarrier:
      break;
  }
  return plan.take();
}

std::vector<CollectiveSlice> cut_slices(const CollectivePlan& plan) {
  std::int64_t most = kSliceBytes / static_cast<std::int64_t>(size_of(plan.dtype));
  std::vector<CollectiveSlice> slices;
  for (std::size_t part = 0; part < plan.parts.size(); ++part) {
    std::int64_t count = plan.parts[part].count;
    for (std::int64_t begin = 0; begin < count; begin += most) {
      slices.push_back({part, begin, std::min(most, count - begin)});
    }
  }
  return slices;
}

void run_slice(const CollectivePlan& plan, const CollectiveSlice& slice) noexcept {
  const CollectivePart& part = plan.parts[slice.part];
  std::size_t item = size_of(plan.dtype), offset = static_cast<std::size_t>(slice.begin) * item;
  std::size_t bytes = static_cast<std::size_t>(slice.count) * item;
  std::span<std::byte* const> targets = plan.targets(part);
  const std::byte* result = plan.sources(part).front() + offset;
  if (part.sources > 1) {
    std::vector<const void*> sources;
    sources.reserve(part.sources);
    for (const std::byte* source : plan.sources(part)) sources.push_back(source + offset);
    reduce_elements(plan.dtype, plan.reduction, sources, targets.front() + offset, slice.count);
    result = targets.front() + offset;
    targets = targets.subspan(1);
  }
  for (std::byte* target : targets) std::memcpy(target + offset, result, bytes);
}

}  // namespace bev
