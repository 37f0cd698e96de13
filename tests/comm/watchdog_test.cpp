// Watchdog reports of ranks that do not arrive, deadlock, or do not end.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/world.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

TEST(Watchdog, AStepOrActionThatBeginsClearsWhatWasSaidOfTheOneBefore) {
  Activity activity;
  activity.set_step(1);
  activity.set_action("forward", 2);
  activity.set_op("norm", 3);
  activity.set_action("optimizer", -1);
  Activity::Snapshot now = activity.snapshot();
  EXPECT_EQ(now.step, 1);
  EXPECT_STREQ(now.action, "optimizer");
  EXPECT_EQ(now.micro_batch, -1);
  EXPECT_STREQ(now.op, "");
  EXPECT_EQ(now.layer, -1);
  activity.set_step(2);
  EXPECT_STREQ(activity.snapshot().action, "");
}

TEST(Watchdog, ARankThatHasEndedIsNamedSo) {
  expect_error(ErrorKind::kComm,
               {"barrier of end in group all has waited 0.", "s for rank 1\n", "rank 1 has ended\n",
                "rank 1 never came: it has ended"},
               [] {
                 run_thread_ranks(3, {0.3}, [](World& world) {
                   std::unique_ptr<Group> group = world.make_group("all", {0, 1, 2});
                   if (world.rank() != 1) group->barrier("end");
                 });
               });
}

// Rank 3 is not in the group that hangs.
TEST(Watchdog, EveryRankOfTheWorldIsInTheReport) {
  expect_error(
      ErrorKind::kComm,
      {"all_gather of weights in group dp has waited 0.", "s for rank 2\n",
       "s for rank 2 in all_gather of weights (group dp, [2, 3] bf16), in step 7, optimizer\n",
       "rank 2 is in step 8, forward of micro-batch 1, layer 4, op norm\n", "rank 3 is in step 8\n",
       "rank 2 never came: it is in step 8, forward of micro-batch 1, layer 4, op norm"},
      [] {
        run_thread_ranks(4, {0.3}, [](World& world) {
          std::vector<Bf16> in(6), out(18);
          world.activity().set_step(8);
          if (world.rank() == 3) world.make_group("alone", {3});
          if (world.rank() == 2) {
            world.activity().set_action("forward", 1);
            world.activity().set_op("norm", 4);
          }
          if (world.rank() >= 2) {
            while (!world.aborted()) std::this_thread::yield();
            return;
          }
          world.activity().set_step(7);
          world.activity().set_action("optimizer", -1);
          std::unique_ptr<Group> group = world.make_group("dp", {0, 1, 2});
          group
              ->all_gather({in.data(), Dtype::kBf16, {2, 3}}, {out.data(), Dtype::kBf16, {18}},
                           "weights")
              .wait();
        });
      });
}

TEST(Watchdog, AnOppositeOrderInTwoGroupsIsACircle) {
  expect_error(ErrorKind::kComm, {"rank 0, rank 1 wait for each other"}, [] {
    run_thread_ranks(2, {0.3}, [](World& world) {
      std::unique_ptr<Group> first = world.make_group("first", {0, 1}),
                             second = world.make_group("second", {0, 1});
      if (world.rank() == 1) std::swap(first, second);
      first->barrier("x");
      second->barrier("x");
    });
  });
}

// A thread cannot be killed; the report is written while it still runs.
TEST(Watchdog, ARankThatDoesNotEndIsNamedOnStderr) {
  testing::internal::CaptureStderr();
  expect_error(ErrorKind::kNumeric, {"rank 0: the cause"}, [] {
    run_thread_ranks(2, {0.05}, [](World& world) {
      BEV_CHECK(world.rank() != 0, ErrorKind::kNumeric, "the cause");
      std::this_thread::sleep_for(std::chrono::seconds(1));
    });
  });
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "error: rank 0: the cause\nwaiting for rank 1 to end"),
            std::string::npos);
}

}  // namespace
}  // namespace bev
