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

// Small enough for several threads to share a collective and for its values to stay in a cache
// between the sum and the copies, large enough to hide the claiming of a slice.
constexpr std::int64_t kSliceBytes = 128 * 1024;

void* at(const View& view, std::int64_t element) {
  return static_cast<std::byte*>(view.data) +
         static_cast<std::size_t>(element) * size_of(view.dtype);
}

void copy(void* to, const void* from, std::int64_t count, Dtype dtype) {
  if (to != from && count > 0)
    std::memcpy(to, from, static_cast<std::size_t>(count) * size_of(dtype));
}

std::int64_t sum_before(std::span<const std::int64_t> counts, std::size_t end) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(end),
                         std::int64_t{0});
}

// Elements of `side` of the members before `end`.
std::int64_t elements_before(Posts posts, View CollectivePost::*side, std::size_t end) {
  std::int64_t sum = 0;
  for (const CollectivePost& post : posts.first(end)) sum += (post.*side).numel();
  return sum;
}

std::vector<std::int64_t> part_counts(Posts posts) {
  const CollectivePost& first = posts.front();
  std::vector<std::int64_t> counts;
  switch (first.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
      return {first.in.numel()};
    case CollectiveKind::kAllGather:
      for (const CollectivePost& post : posts) counts.push_back(post.in.numel());
      break;
    case CollectiveKind::kReduceScatter:
      for (const CollectivePost& post : posts) counts.push_back(post.out.numel());
      break;
    case CollectiveKind::kAllToAll:
      for (const CollectivePost& post : posts) {
        counts.insert(counts.end(), post.send.begin(), post.send.end());
      }
      break;
    case CollectiveKind::kBarrier:
      break;
  }
  return counts;
}

// Elements [begin, begin + count) of all inputs.
void reduce_range(Posts posts, std::int64_t begin, void* to, std::int64_t count) {
  std::vector<const void*> sources;
  sources.reserve(posts.size());
  for (const CollectivePost& post : posts) sources.push_back(at(post.in, begin));
  reduce_elements(posts.front().in.dtype, posts.front().reduction, sources, to, count);
}

// Who meets whom, for the message.
std::string meeting_text(const CollectivePost& post) {
  std::string text = concat(name_of(post.kind), " of ", post.label, " (", name_of(post.in.dtype));
  if (post.kind == CollectiveKind::kBroadcast) text += concat(", from member ", post.root);
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

// The parts fill every member's whole, and a part that lies in its whole lies at its own place.
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

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "";
}

void check_posts(Posts posts, std::span<const int> members) {
  check_same(posts, members);
  switch (posts.front().kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
      return check_equal_counts(posts);
    case CollectiveKind::kAllGather:
      return check_parts(posts, members, &CollectivePost::in, &CollectivePost::out);
    case CollectiveKind::kReduceScatter:
      return check_parts(posts, members, &CollectivePost::out, &CollectivePost::in);
    case CollectiveKind::kAllToAll:
      return check_exchange(posts, members);
    case CollectiveKind::kBarrier:
      return;
  }
}

std::vector<CollectiveSlice> cut_slices(Posts posts) {
  std::int64_t most = kSliceBytes / static_cast<std::int64_t>(size_of(posts.front().in.dtype));
  std::vector<std::int64_t> counts = part_counts(posts);
  std::vector<CollectiveSlice> slices;
  for (std::size_t part = 0; part < counts.size(); ++part) {
    for (std::int64_t begin = 0; begin < counts[part]; begin += most) {
      slices.push_back({part, begin, std::min(most, counts[part] - begin)});
    }
  }
  return slices;
}

void run_slice(Posts posts, const CollectiveSlice& slice) {
  const CollectivePost& first = posts.front();
  Dtype dtype = first.in.dtype;
  switch (first.kind) {
    case CollectiveKind::kAllReduce: {
      void* sum = at(first.in, slice.begin);
      reduce_range(posts, slice.begin, sum, slice.count);
      for (const CollectivePost& to : posts) copy(at(to.in, slice.begin), sum, slice.count, dtype);
      return;
    }
    case CollectiveKind::kAllGather: {
      const void* from = at(posts[slice.part].in, slice.begin);
      std::int64_t begin = elements_before(posts, &CollectivePost::in, slice.part) + slice.begin;
      for (const CollectivePost& to : posts) copy(at(to.out, begin), from, slice.count, dtype);
      return;
    }
    case CollectiveKind::kReduceScatter: {
      std::int64_t begin = elements_before(posts, &CollectivePost::out, slice.part) + slice.begin;
      return reduce_range(posts, begin, at(posts[slice.part].out, slice.begin), slice.count);
    }
    case CollectiveKind::kBroadcast: {
      const void* from = at(posts[static_cast<std::size_t>(first.root)].in, slice.begin);
      for (const CollectivePost& to : posts) copy(at(to.in, slice.begin), from, slice.count, dtype);
      return;
    }
    case CollectiveKind::kAllToAll: {
      std::size_t from = slice.part / posts.size(), to = slice.part % posts.size();
      const void* source = at(posts[from].in, sum_before(posts[from].send, to) + slice.begin);
      void* target = at(posts[to].out, sum_before(posts[to].receive, from) + slice.begin);
      return copy(target, source, slice.count, dtype);
    }
    case CollectiveKind::kBarrier:
      return;
  }
}

}  // namespace bev
