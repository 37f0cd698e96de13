// Ranks that disagree, fail or do not arrive.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "comm/world.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

View view_of(std::vector<float>& data) {
  return {data.data(), Dtype::kF32, {static_cast<std::int64_t>(data.size())}};
}

// Runs body(group) on `ranks` ranks and expects the launcher's error.
template <class Body>
void expect_failure(int ranks, ErrorKind kind, const std::vector<std::string>& parts,
                    const Body& body, double timeout = 20) {
  expect_error(kind, parts, [&] {
    run_thread_ranks(ranks, {timeout}, [&](World& world) {
      std::vector<int> members;
      for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
      std::unique_ptr<Group> group = world.make_group("group", members);
      body(*group);
    });
  });
}

TEST(Failure, DifferentCollectivesAreNamedBoth) {
  expect_failure(3, ErrorKind::kComm, {"rank 0 in all_reduce of weights", "rank 2 in broadcast of"},
                 [](Group& group) {
                   std::vector<float> data(4);
                   if (group.rank() == 2) {
                     group.broadcast(view_of(data), 0, "tokens").wait();
                   } else {
                     group.all_reduce(view_of(data), Reduction::kSum, "weights").wait();
                   }
                 });
}

TEST(Failure, ABarrierAgainstACollectiveIsNamed) {
  expect_failure(2, ErrorKind::kComm, {"in all_reduce of weights", "in barrier of start"},
                 [](Group& group) {
                   std::vector<float> data(4);
                   if (group.rank() == 1) return group.barrier("start");
                   group.all_reduce(view_of(data), Reduction::kSum, "weights").wait();
                 });
}

TEST(Failure, DifferentLabelsDtypesAndSizesAreNamed) {
  expect_failure(2, ErrorKind::kComm, {"all_reduce of a", "all_reduce of b"}, [](Group& group) {
    std::vector<float> data(4);
    group.all_reduce(view_of(data), Reduction::kSum, group.rank() == 0 ? "a" : "b").wait();
  });
  expect_failure(2, ErrorKind::kComm, {"(f32)", "(i32)"}, [](Group& group) {
    std::vector<float> data(4);
    View view = view_of(data);
    if (group.rank() == 1) view.dtype = Dtype::kI32;
    group.all_reduce(view, Reduction::kSum, "x").wait();
  });
  expect_failure(2, ErrorKind::kComm, {"all_reduce of x", "[4]", "[5]"}, [](Group& group) {
    std::vector<float> data(4 + static_cast<std::size_t>(group.rank()));
    group.all_reduce(view_of(data), Reduction::kSum, "x").wait();
  });
}

TEST(Failure, PartsThatDoNotFillTheWholeAreNamed) {
  // Only one rank has the wrong size; the others must not access its memory.
  expect_failure(3, ErrorKind::kComm, {"all_gather of x", "rank 1", "[7]", "6 elements"},
                 [](Group& group) {
                   std::vector<float> in(2), out(group.rank() == 1 ? 7 : 6);
                   group.all_gather(view_of(in), view_of(out), "x").wait();
                 });
  expect_failure(3, ErrorKind::kComm, {"reduce_scatter of x", "[6]", "7 elements"},
                 [](Group& group) {
                   std::vector<float> in(6), out(group.rank() == 2 ? 3 : 2);
                   group.reduce_scatter(view_of(in), view_of(out), "x").wait();
                 });
  expect_failure(2, ErrorKind::kComm, {"all_to_all of x", "rank 0 sends 2", "rank 1 expects 1"},
                 [](Group& group) {
                   std::vector<float> in(3), out(group.rank() == 0 ? 3 : 2);
                   std::vector<std::int64_t> send = {1, 2}, receive = {1, 2};
                   if (group.rank() == 1) receive = {1, 1};
                   if (group.rank() == 1) send = {2, 1};
                   group.all_to_all(view_of(in), send, view_of(out), receive, "x").wait();
                 });
  expect_failure(2, ErrorKind::kComm, {"all_gather of x", "f32", "f64"}, [](Group& group) {
    std::vector<float> in(2), out(8);
    group.all_gather(view_of(in), {out.data(), Dtype::kF64, {4}}, "x").wait();
  });
}

TEST(Failure, AMessageOfTheWrongSizeIsNamed) {
  expect_failure(2, ErrorKind::kComm, {"receive of x", "12 bytes", "rank 0", "expected 16"},
                 [](Group& group) {
                   std::vector<float> data(group.rank() == 0 ? 3 : 4);
                   if (group.rank() == 0) {
                     group.send(view_of(data), 1, 0, "x").wait();
                   } else {
                     group.receive(view_of(data), 0, 0, "x").wait();
                   }
                 });
}

TEST(Failure, ATimeoutNamesTheAbsentRanks) {
  std::atomic<bool> over = false;
  expect_failure(
      4, ErrorKind::kComm,
      {"all_reduce of x in group group has waited 0.", "s for rank 1, rank 3\n",
       "rank 1 never came: it computes; rank 3 never came"},
      [&](Group& group) {
        std::vector<float> data(4);
        if (group.rank() % 2 == 0) {
          try {
            group.all_reduce(view_of(data), Reduction::kSum, "x").wait();
          } catch (...) {
            over = true;
            throw;
          }
        }
        while (!over) std::this_thread::yield();
      },
      0.1);
  over = false;
  expect_failure(
      2, ErrorKind::kComm,
      {"rank 1: receive of x in group group has waited 0.", "s for rank 0\n",
       "rank 0 never came: it computes"},
      [&](Group& group) {
        std::vector<float> data(4);
        if (group.rank() == 1) {
          try {
            group.receive(view_of(data), 0, 0, "x").wait();
          } catch (...) {
            over = true;
            throw;
          }
        }
        while (!over) std::this_thread::yield();
      },
      0.1);
}

TEST(Failure, TheFirstCauseIsRethrownWithRankAndKindAndTheOthersWake) {
  for (ErrorKind kind : {ErrorKind::kNumeric, ErrorKind::kIo, ErrorKind::kConfig}) {
    std::atomic<int> woken = 0;
    expect_failure(4, kind, {"rank 2: ", "the cause"}, [&](Group& group) {
      std::vector<float> data(4);
      BEV_CHECK(group.rank() != 2, kind, "the cause");
      try {
        // A collective, a barrier and a receive: all must wake.
        if (group.rank() == 0) group.all_reduce(view_of(data), Reduction::kSum, "x").wait();
        if (group.rank() == 1) group.receive(view_of(data), 0, 0, "never sent").wait();
        if (group.rank() == 3) group.barrier("x");
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kComm);
        EXPECT_NE(std::string_view(error.what()).find("another rank failed"),
                  std::string_view::npos);
        ++woken;
        throw;
      }
    });
    EXPECT_EQ(woken.load(), 3);
  }
}

TEST(Failure, AnExceptionOfAnotherTypePassesThrough) {
  EXPECT_THROW(run_thread_ranks(2, {20.0},
                                [](World& world) {
                                  std::unique_ptr<Group> group = world.make_group("group", {0, 1});
                                  if (world.rank() == 1) throw std::runtime_error("foreign");
                                  group->barrier("x");
                                }),
               std::runtime_error);
}

// A rank that left a collective with an error takes its memory along; a late rank must neither read
// nor write it.
TEST(Failure, ALatecomerDoesNotTouchTheMemoryOfARankThatLeft) {
  std::vector<float> left(4, 1.0f);
  std::atomic<bool> gone = false, late_failed = false;
  expect_failure(3, ErrorKind::kNumeric, {"rank 2: the cause"}, [&](Group& group) {
    std::unique_ptr<Group> unused;
    std::vector<float> mine(4, 10.0f);
    if (group.rank() == 2) BEV_FAIL(ErrorKind::kNumeric, "the cause");
    try {
      if (group.rank() == 0) {
        group.all_reduce(view_of(left), Reduction::kSum, "x").wait();
      } else {
        while (!gone) std::this_thread::yield();
        group.all_reduce(view_of(mine), Reduction::kSum, "x").wait();
      }
    } catch (const Error&) {
      (group.rank() == 0 ? gone : late_failed) = true;
      throw;
    }
  });
  EXPECT_TRUE(late_failed);
  EXPECT_EQ(left, std::vector<float>(4, 1.0f));
}

// The same in a group that is complete without the failed rank.
TEST(Failure, ALatecomerOfAnotherGroupDoesNotTouchItEither) {
  std::vector<float> left(4, 1.0f);
  std::atomic<bool> gone = false;
  expect_error(ErrorKind::kNumeric, {"rank 2: the cause"}, [&] {
    run_thread_ranks(3, {20.0}, [&](World& world) {
      std::vector<float> mine(4, 10.0f);
      if (world.rank() == 2) BEV_FAIL(ErrorKind::kNumeric, "the cause");
      std::unique_ptr<Group> pair = world.make_group("group", {0, 1});
      if (world.rank() == 1) {
        while (!gone) std::this_thread::yield();
        pair->all_reduce(view_of(mine), Reduction::kSum, "x").wait();
        return;
      }
      try {
        pair->all_reduce(view_of(left), Reduction::kSum, "x").wait();
      } catch (const Error&) {
        gone = true;
        throw;
      }
    });
  });
  EXPECT_EQ(left, std::vector<float>(4, 1.0f));
}

TEST(Failure, ALateTimeoutDoesNotLeaveMemoryBehindEither) {
  std::vector<float> left(4, 1.0f);
  std::atomic<bool> gone = false;
  expect_failure(
      2, ErrorKind::kComm, {"rank 1 never came"},
      [&](Group& group) {
        std::vector<float> mine(4, 10.0f);
        if (group.rank() == 1) {
          while (!gone) std::this_thread::yield();
          group.all_reduce(view_of(mine), Reduction::kSum, "x").wait();
          return;
        }
        try {
          group.all_reduce(view_of(left), Reduction::kSum, "x").wait();
        } catch (const Error&) {
          gone = true;
          throw;
        }
      },
      0.2);
  EXPECT_EQ(left, std::vector<float>(4, 1.0f));
}

// Dropping a Work withdraws its post; if it is complete, it is finished first.
TEST(Failure, ADroppedWorkLeavesItsMemoryAlone) {
  std::vector<float> left(4, 1.0f);
  std::atomic<bool> dropped = false;
  expect_failure(
      2, ErrorKind::kComm, {"rank 1: all_reduce of x in group group", "rank 0 never came"},
      [&](Group& group) {
        if (group.rank() == 0) {
          { Work pending = group.all_reduce(view_of(left), Reduction::kSum, "x"); }
          dropped = true;
          return;
        }
        while (!dropped) std::this_thread::yield();
        std::vector<float> mine(4, 10.0f);
        group.all_reduce(view_of(mine), Reduction::kSum, "x").wait();
      },
      0.1);
  EXPECT_EQ(left, std::vector<float>(4, 1.0f));

  run_thread_ranks(2, {20.0}, [](World& world) {
    std::unique_ptr<Group> group = world.make_group("group", {0, 1});
    std::vector<float> data(4, 1.0f);
    {
      Work pending = group->all_reduce(view_of(data), Reduction::kSum, "x");
      if (world.rank() == 0) pending.wait();
      group->barrier("posted");
    }
    EXPECT_EQ(data, std::vector<float>(4, 2.0f));
  });
}

TEST(Failure, AReceiveThatIsDroppedKeepsTheOrderOfTheOthers) {
  run_thread_ranks(2, {20.0}, [](World& world) {
    std::unique_ptr<Group> group = world.make_group("group", {0, 1});
    std::vector<float> one(1, 1.0f), two(1, 2.0f), got(1), second(1);
    if (world.rank() == 0) {
      group->send(view_of(one), 1, 0, "x").wait();
      group->send(view_of(two), 1, 0, "x").wait();
      return;
    }
    { Work pending = group->receive(view_of(got), 0, 0, "x"); }
    group->receive(view_of(second), 0, 0, "x").wait();
    EXPECT_EQ(got[0], 0.0f);
    EXPECT_EQ(second[0], 2.0f);
  });
}

TEST(Failure, DifferentRootsAndReductionsAreNamed) {
  expect_failure(2, ErrorKind::kComm, {"from member 0", "from member 1"}, [](Group& group) {
    std::vector<float> data(4);
    group.broadcast(view_of(data), group.rank(), "x").wait();
  });
  expect_failure(2, ErrorKind::kComm, {"rank 1 in all_reduce of x (f32, maximum)"},
                 [](Group& group) {
                   std::vector<float> data(4);
                   Reduction mine = group.rank() == 0 ? Reduction::kSum : Reduction::kMax;
                   group.all_reduce(view_of(data), mine, "x").wait();
                 });
  expect_failure(2, ErrorKind::kInternal, {"broadcast of x", "no member 2"}, [](Group& group) {
    std::vector<float> data(4);
    group.broadcast(view_of(data), 2, "x").wait();
  });
}

// Others would read data that is already overwritten.
TEST(Failure, APartAtTheWrongPlaceOfItsWholeIsAnError) {
  auto misplaced = [](Group& group, std::vector<float>& whole) {
    return view_of(whole).rows(1 - group.rank(), 3 - group.rank());
  };
  expect_failure(2, ErrorKind::kComm, {"reduce_scatter of x", "rank 0", "its own place"},
                 [&](Group& group) {
                   std::vector<float> whole(4);
                   View part = misplaced(group, whole);
                   group.reduce_scatter(view_of(whole), part, "x").wait();
                 });
  expect_failure(2, ErrorKind::kComm, {"all_gather of x", "rank 0", "its own place"},
                 [&](Group& group) {
                   std::vector<float> whole(4);
                   group.all_gather(misplaced(group, whole), view_of(whole), "x").wait();
                 });
  expect_failure(2, ErrorKind::kComm, {"all_to_all of x", "overlap"}, [&](Group& group) {
    std::vector<float> data(4);
    std::vector<std::int64_t> counts = {2, 2};
    group.all_to_all(view_of(data), counts, view_of(data), counts, "x").wait();
  });
  expect_failure(2, ErrorKind::kComm, {"all_to_all of x", "counts of rank 0 do not fill [4]"},
                 [&](Group& group) {
                   std::vector<float> in(4), out(4);
                   std::vector<std::int64_t> counts = {2, 1};
                   group.all_to_all(view_of(in), counts, view_of(out), counts, "x").wait();
                 });
}

// Many rounds with a failure at a random position, for the sanitizers.
TEST(Failure, AnyRankMayFailAtAnyTime) {
  for (int round = 0; round < 40; ++round) {
    expect_failure(4, ErrorKind::kNumeric, {"the cause"}, [&](Group& group) {
      for (int step = 0; step < 12; ++step) {
        BEV_CHECK(group.rank() != round % 4 || step != round % 11, ErrorKind::kNumeric,
                  "the cause");
        std::vector<float> data(64, 1.0f), whole(256);
        if (step % 2 == 0) group.all_reduce(view_of(data), Reduction::kSum, "x").wait();
        if (step % 2 == 1) group.all_gather(view_of(data), view_of(whole), "y").wait();
      }
    });
  }
}

TEST(Failure, AGroupWithoutItselfOrWithNobodyToTalkToIsAnError) {
  expect_error(ErrorKind::kInternal, {"rank 0", "without itself"}, [] {
    run_thread_ranks(1, {20.0}, [](World& world) { world.make_group("group", {1, 2}); });
  });
  std::vector<float> data(1);
  expect_error(ErrorKind::kInternal, {"x", "nobody"},
               [&] { make_single_group("group", 0)->send(view_of(data), 0, 0, "x"); });
}

}  // namespace
}  // namespace bev
