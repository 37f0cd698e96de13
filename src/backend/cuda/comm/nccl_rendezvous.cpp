// Host-side agreement on the collectives of a NCCL group.
#include "backend/cuda/comm/nccl_rendezvous.h"

#include <algorithm>

#include "base/error.h"

namespace bev {

namespace {

// How many collectives a host may be ahead of its slowest peer. More would not hide more latency,
// but delay the report of an error.
constexpr std::size_t kMostOpen = 64;

// Layout of an announcement: kind, dtype, reduction, root; counts in and out; counts sent to each
// member.
constexpr std::size_t kSame = 4, kIn = 4, kOut = 5, kSends = 6;

}  // namespace

void NcclRendezvous::post(const CollectivePost& post) {
  auto members = static_cast<std::size_t>(host_.size());
  Meeting& meeting = open_.emplace_back();
  meeting.post = post;
  meeting.mine = {static_cast<std::int64_t>(post.kind),
                  static_cast<std::int64_t>(post.in.dtype),
                  static_cast<std::int64_t>(post.reduction),
                  post.root,
                  post.in.numel(),
                  post.out.numel()};
  meeting.mine.insert(meeting.mine.end(), post.send.begin(), post.send.end());
  meeting.mine.resize(kSends + members);
  meeting.all.resize(meeting.mine.size() * members);
  auto count = static_cast<std::int64_t>(meeting.mine.size());
  meeting.work =
      host_.all_gather({meeting.mine.data(), Dtype::kI64, {count}},
                       {meeting.all.data(), Dtype::kI64, {count * host_.size()}}, post.label);
}

void NcclRendezvous::check(const Meeting& meeting) const {
  const CollectivePost& post = meeting.post;
  auto members = static_cast<std::size_t>(host_.size()),
       me = static_cast<std::size_t>(host_.rank());
  std::int64_t in = 0, out = 0;
  for (std::size_t i = 0; i < members; ++i) {
    const std::int64_t* theirs = meeting.all.data() + i * meeting.mine.size();
    bool same = std::equal(theirs, theirs + kSame, meeting.mine.begin());
    bool reduces = post.kind == GroupOp::kAllReduce || post.kind == GroupOp::kBroadcast;
    if (reduces) same &= theirs[kIn] == post.in.numel();
    if (post.kind == GroupOp::kAllToAll) same &= theirs[kSends + me] == post.receive[i];
    BEV_CHECK(same, ErrorKind::kComm, name_of(post.kind), " of ", post.label, ": rank ",
              host_.members()[i], " brings something else than rank ", host_.members()[me],
              ", or to another collective");
    in += theirs[kIn];
    out += theirs[kOut];
  }
  bool fits = true;
  if (post.kind == GroupOp::kAllGather) fits = in == post.out.numel();
  if (post.kind == GroupOp::kReduceScatter) fits = out == post.in.numel();
  BEV_CHECK(fits, ErrorKind::kComm, name_of(post.kind), " of ", post.label, ": rank ",
            host_.members()[me], " has ", post.in.shape, " and ", post.out.shape, " for ", in,
            " and ", out, " elements of all members");
}

void NcclRendezvous::finish_oldest() {
  open_.front().work.wait();
  check(open_.front());
  open_.pop_front();
}

void NcclRendezvous::announce(const CollectivePost& brought) {
  if (open_.size() == kMostOpen) finish_oldest();
  post(brought);
}

NcclRendezvous::Counts NcclRendezvous::exchange(const CollectivePost& brought) {
  finish();
  post(brought);
  open_.front().work.wait();
  check(open_.front());
  Counts counts;
  const Meeting& meeting = open_.front();
  for (std::size_t at = 0; at < meeting.all.size(); at += meeting.mine.size()) {
    counts.in.push_back(meeting.all[at + kIn]);
    counts.out.push_back(meeting.all[at + kOut]);
  }
  open_.pop_front();
  return counts;
}

void NcclRendezvous::finish() {
  while (!open_.empty()) finish_oldest();
}

}  // namespace bev
