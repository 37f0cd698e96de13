#include "parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace bev {
namespace {

std::vector<Schedule> all_stages(std::int64_t stages, std::int64_t micro_batches) {
  std::vector<Schedule> list;
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    list.push_back(schedule_1f1b(stages, stage, micro_batches));
  }
  return list;
}

// "F0 F1 B0 ...": computation only.
std::string order_of(const Schedule& schedule) {
  std::string text;
  for (const Action& action : schedule) {
    if (action.kind == ActionKind::kForward) text += "F" + std::to_string(action.micro_batch) + " ";
    if (action.kind == ActionKind::kBackward)
      text += "B" + std::to_string(action.micro_batch) + " ";
  }
  return text;
}

// As Megatron's schedules.py runs it: warm-up min(P - rank - 1, M), then one forward, one backward.
TEST(Schedule1F1B, IsMegatronsOrder) {
  EXPECT_EQ(order_of(schedule_1f1b(4, 0, 8)), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7 ");
  EXPECT_EQ(order_of(schedule_1f1b(4, 1, 8)), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7 ");
  EXPECT_EQ(order_of(schedule_1f1b(4, 2, 8)), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7 ");
  EXPECT_EQ(order_of(schedule_1f1b(4, 3, 8)), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 ");
  // Fewer micro-batches than stages.
  EXPECT_EQ(order_of(schedule_1f1b(4, 0, 2)), "F0 F1 B0 B1 ");
  EXPECT_EQ(order_of(schedule_1f1b(4, 2, 2)), "F0 F1 B0 B1 ");
  EXPECT_EQ(order_of(schedule_1f1b(1, 0, 3)), "F0 B0 F1 B1 F2 B2 ");
}

TEST(Schedule1F1B, SendsAndReceivesAroundEachComputation) {
  using K = ActionKind;
  EXPECT_EQ(schedule_1f1b(3, 1, 2), (Schedule{{K::kReceiveForward, 0},
                                              {K::kForward, 0},
                                              {K::kSendForward, 0},
                                              {K::kReceiveForward, 1},
                                              {K::kForward, 1},
                                              {K::kSendForward, 1},
                                              {K::kReceiveBackward, 0},
                                              {K::kBackward, 0},
                                              {K::kSendBackward, 0},
                                              {K::kReceiveBackward, 1},
                                              {K::kBackward, 1},
                                              {K::kSendBackward, 1}}));
  EXPECT_EQ(
      schedule_1f1b(2, 0, 1),
      (Schedule{
          {K::kForward, 0}, {K::kSendForward, 0}, {K::kReceiveBackward, 0}, {K::kBackward, 0}}));
  EXPECT_EQ(
      schedule_1f1b(2, 1, 1),
      (Schedule{
          {K::kReceiveForward, 0}, {K::kForward, 0}, {K::kBackward, 0}, {K::kSendBackward, 0}}));
}

TEST(Schedule1F1B, RunsThroughWithItsPeakAndBubble) {
  for (std::int64_t stages : {1, 2, 3, 4, 8}) {
    for (std::int64_t batches : {1, 2, 3, 8, 17}) {
      SCOPED_TRACE(testing::Message() << stages << " stages, " << batches << " micro-batches");
      ScheduleReport report = play_schedules(all_stages(stages, batches), batches, true);
      ASSERT_EQ(report.problem, "");
      for (std::int64_t stage = 0; stage < stages; ++stage) {
        EXPECT_EQ(report.peak_in_flight[static_cast<std::size_t>(stage)],
                  std::min(stages - stage, batches));
      }
      EXPECT_NEAR(report.bubble,
                  static_cast<double>(stages - 1) / static_cast<double>(batches + stages - 1),
                  1e-12);
    }
  }
}

TEST(ScheduleForward, RunsThroughWithoutBackwards) {
  for (std::int64_t stages : {1, 3}) {
    std::vector<Schedule> list;
    for (std::int64_t s = 0; s < stages; ++s) list.push_back(schedule_forward(stages, s, 5));
    EXPECT_EQ(play_schedules(list, 5, false).problem, "");
    EXPECT_NE(play_schedules(list, 5, true).problem, "");
  }
  EXPECT_NE(play_schedules(all_stages(2, 5), 5, false).problem, "");
}

// Every single action left out or doubled, anywhere, is noticed.
TEST(PlaySchedules, NoticesEveryMissingAndDoubledAction) {
  std::vector<Schedule> good = all_stages(3, 4);
  for (std::size_t stage = 0; stage < 3; ++stage) {
    for (std::size_t i = 0; i < good[stage].size(); ++i) {
      auto at = static_cast<std::ptrdiff_t>(i);
      std::vector<Schedule> missing = good, doubled = good;
      missing[stage].erase(missing[stage].begin() + at);
      doubled[stage].insert(doubled[stage].begin() + at, good[stage][i]);
      EXPECT_NE(play_schedules(missing, 4, true).problem, "") << stage << " " << i;
      EXPECT_NE(play_schedules(doubled, 4, true).problem, "") << stage << " " << i;
    }
  }
  std::vector<Schedule> missing = good;
  missing[1].erase(
      std::find(missing[1].begin(), missing[1].end(), Action{ActionKind::kBackward, 2}));
  EXPECT_EQ(play_schedules(missing, 4, true).problem,
            "stage 1: micro-batch 2 has 0 times backward");
}

TEST(PlaySchedules, NoticesAForwardBeforeItsInput) {
  std::vector<Schedule> list = all_stages(2, 2);
  std::swap(list[1][0], list[1][1]);
  EXPECT_EQ(play_schedules(list, 2, true).problem,
            "stage 1: micro-batch 0 does forward before receive forward");
}

// Transports deliver in the order sent and know no micro-batches.
TEST(PlaySchedules, NoticesMessagesTakenInAnotherOrder) {
  auto forwards = [](std::initializer_list<std::int64_t> order, std::int64_t stage) {
    Schedule list;
    for (std::int64_t i : order) {
      if (stage == 1) list.push_back({ActionKind::kReceiveForward, i});
      list.push_back({ActionKind::kForward, i});
      if (stage == 0) list.push_back({ActionKind::kSendForward, i});
    }
    return list;
  };
  EXPECT_EQ(play_schedules({forwards({1, 0}, 0), forwards({1, 0}, 1)}, 2, false).problem, "");
  EXPECT_EQ(play_schedules({forwards({0, 1}, 0), forwards({1, 0}, 1)}, 2, false).problem,
            "stage 1 waits for micro-batch 1, but 0 was sent first");
}

// Stage 0 waits for a gradient that stage 1 can give only after stage 0's next forward.
TEST(PlaySchedules, NoticesADeadlock) {
  using K = ActionKind;
  Schedule first{{K::kForward, 0},         {K::kSendForward, 0}, {K::kReceiveBackward, 0},
                 {K::kBackward, 0},        {K::kForward, 1},     {K::kSendForward, 1},
                 {K::kReceiveBackward, 1}, {K::kBackward, 1}};
  Schedule second{{K::kReceiveForward, 0}, {K::kForward, 0},     {K::kReceiveForward, 1},
                  {K::kForward, 1},        {K::kBackward, 0},    {K::kSendBackward, 0},
                  {K::kBackward, 1},       {K::kSendBackward, 1}};
  EXPECT_NE(play_schedules({first, second}, 2, true).problem.find("deadlock: stage"),
            std::string::npos);
}

TEST(PlaySchedules, NoticesAMicroBatchThatDoesNotExist) {
  std::vector<Schedule> list = all_stages(1, 2);
  list[0].push_back({ActionKind::kForward, 2});
  EXPECT_EQ(play_schedules(list, 2, true).problem, "stage 0: no micro-batch 2");
}

}  // namespace
}  // namespace bev
