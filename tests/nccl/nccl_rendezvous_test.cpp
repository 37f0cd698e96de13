// What the hosts of a NCCL group tell each other; no GPU is needed for it.
#include "backend/cuda/comm/nccl_rendezvous.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/world.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

// Nobody looks at the data.
CollectivePost post_of(GroupOp kind, const char* label, std::int64_t in, std::int64_t out) {
  return {kind, label, {nullptr, Dtype::kF32, {in}}, {nullptr, Dtype::kF32, {out}}};
}

template <class Body>
void on_ranks(int ranks, double timeout, const Body& body) {
  run_thread_ranks(ranks, {timeout}, [&](World& world) {
    std::vector<int> members;
    for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
    std::unique_ptr<Group> host = world.make_group("group", members);
    NcclRendezvous meetings(*host);
    body(world, meetings);
  });
}

TEST(NcclRendezvous, CountsOfAllMembersAreKnown) {
  on_ranks(3, 20, [](World& world, NcclRendezvous& meetings) {
    for (int round = 0; round < 10; ++round) {
      NcclRendezvous::Counts counts =
          meetings.exchange(post_of(GroupOp::kAllGather, "x", 2 + world.rank(), 9));
      EXPECT_EQ(counts.in, (std::vector<std::int64_t>{2, 3, 4}));
      EXPECT_EQ(counts.out, (std::vector<std::int64_t>{9, 9, 9}));
      meetings.announce(post_of(GroupOp::kAllReduce, "y", 5, 5));
    }
    meetings.finish();
  });
}

TEST(NcclRendezvous, AHostMayBeAheadButNotForEver) {
  std::atomic<int> announced = 0;
  on_ranks(2, 20, [&](World& world, NcclRendezvous& meetings) {
    // The other comes only once this one is well ahead, which it must be able to be.
    while (world.rank() == 1 && announced < 50) std::this_thread::yield();
    for (int i = 0; i < 500; ++i) {
      meetings.announce(post_of(GroupOp::kAllReduce, "x", 5, 5));
      if (world.rank() == 0) ++announced;
    }
    meetings.finish();
  });
}

TEST(NcclRendezvous, WhatDoesNotFitTogetherIsAnError) {
  auto expect_failure = [](const std::string& part, auto make) {
    expect_error(ErrorKind::kComm, {part}, [&] {
      on_ranks(2, 20, [&](World& world, NcclRendezvous& meetings) {
        meetings.announce(make(world.rank()));
        meetings.finish();
      });
    });
  };
  expect_failure("all_reduce of x: rank",
                 [](int rank) { return post_of(GroupOp::kAllReduce, "x", 5 + rank, 5 + rank); });
  expect_failure("something else than rank", [](int rank) {
    return post_of(rank == 0 ? GroupOp::kAllReduce : GroupOp::kBroadcast, "x", 5, 5);
  });
  expect_failure(
      "of a", [](int rank) { return post_of(GroupOp::kAllReduce, rank == 0 ? "a" : "b", 5, 5); });
  expect_failure("reduce_scatter of x",
                 [](int rank) { return post_of(GroupOp::kReduceScatter, "x", 8, 4 + rank); });
}

TEST(NcclRendezvous, ARankThatDoesNotComeIsReported) {
  expect_error(ErrorKind::kComm, {"of x in group group has waited 0.", "rank 1 never came"}, [] {
    on_ranks(2, 0.2, [](World& world, NcclRendezvous& meetings) {
      while (world.rank() == 1 && !world.aborted()) std::this_thread::yield();
      meetings.announce(post_of(GroupOp::kAllReduce, "x", 5, 5));
      meetings.finish();
    });
  });
}

}  // namespace
}  // namespace bev
