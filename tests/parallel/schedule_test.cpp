#include "parallel/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/philox.h"
#include "parallel/pipeline/schedule_player.h"

namespace bev {
namespace {

using Kind = PipelineSchedule;

PipelineShape shape_of(std::int64_t ranks, std::int64_t chunks = 1, Kind kind = Kind::k1F1B,
                       std::int64_t group_size = 0) {
  return {ranks, chunks, kind, group_size};
}

std::vector<Schedule> all_ranks(std::int64_t ranks, std::int64_t micro_batches) {
  return make_schedules(shape_of(ranks), micro_batches);
}

ScheduleReport play(const PipelineShape& shape, std::int64_t micro_batches,
                    const ActionCosts& costs = {}) {
  return play_schedules(shape, make_schedules(shape, micro_batches), micro_batches, true, costs);
}

// "F0 F1 B0 ...": computations only. With several chunks "F0.1" is micro-batch 0 on chunk 1.
std::string order_of(const Schedule& schedule, bool with_chunks = false) {
  std::string text;
  for (const Action& action : schedule) {
    if (!computes(action.kind)) continue;
    text += action.kind == ActionKind::kForward          ? "F"
            : action.kind == ActionKind::kBackwardWeight ? "W"
                                                         : "B";
    text += std::to_string(action.micro_batch);
    text += with_chunks ? "." + std::to_string(action.chunk) + " " : " ";
  }
  return text;
}

std::int64_t leading_forwards(const Schedule& schedule) {
  std::int64_t count = 0;
  for (const Action& action : schedule) {
    if (!computes(action.kind)) continue;
    if (action.kind != ActionKind::kForward) break;
    ++count;
  }
  return count;
}

TEST(ScheduleTraits, RowsAreDistinctAndComplete) {
  std::set<std::string_view> names, words;
  for (const ScheduleTraits& traits : schedule_traits()) {
    EXPECT_EQ(&traits_of(traits.schedule), &traits);
    EXPECT_TRUE(names.insert(traits.name).second) << traits.name;
    EXPECT_TRUE(words.insert(traits.layout_word).second) << traits.layout_word;
    EXPECT_EQ(traits.chunks > 0, !traits.chunks_rule.empty()) << traits.name;
    EXPECT_EQ(traits.chunks > 0, !traits.chunks_cure.empty()) << traits.name;
    EXPECT_TRUE(traits.placement == StagePlacement::kLoop || traits.chunks == 2) << traits.name;
  }
  EXPECT_TRUE(names_of_schedules(&ScheduleTraits::grouped).starts_with("1f1b"));
  EXPECT_EQ(ParallelConfig().pipeline_schedule, schedule_traits().front().schedule);
}

TEST(PipelineShape, PlacesStagesInALoopOrAV) {
  PipelineShape loop = shape_of(3, 2), v = shape_of(3, 2, Kind::kZeroBubbleV);
  std::vector<StagePlace> loop_places, v_places;
  for (std::int64_t stage = 0; stage < 6; ++stage) {
    loop_places.push_back(loop.place_of(stage));
    v_places.push_back(v.place_of(stage));
    EXPECT_EQ(loop.stage_at(loop.place_of(stage).rank, loop.place_of(stage).chunk), stage);
    EXPECT_EQ(v.stage_at(v.place_of(stage).rank, v.place_of(stage).chunk), stage);
    EXPECT_EQ(loop.crosses(stage), stage < 5);
    EXPECT_EQ(v.crosses(stage), stage != 2 && stage < 5);
  }
  EXPECT_EQ(loop_places, (std::vector<StagePlace>{{0, 0}, {1, 0}, {2, 0}, {0, 1}, {1, 1}, {2, 1}}));
  EXPECT_EQ(v_places, (std::vector<StagePlace>{{0, 0}, {1, 0}, {2, 0}, {2, 1}, {1, 1}, {0, 1}}));
}

// As in Megatron's schedules.py: warmup of min(P - rank - 1, M), then one forward, one backward.
TEST(Schedule1F1B, IsMegatronsOrder) {
  std::vector<Schedule> eight = all_ranks(4, 8), two = all_ranks(4, 2);
  EXPECT_EQ(order_of(eight[0]), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7 ");
  EXPECT_EQ(order_of(eight[1]), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7 ");
  EXPECT_EQ(order_of(eight[2]), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7 ");
  EXPECT_EQ(order_of(eight[3]), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 ");
  // Fewer micro-batches than stages.
  EXPECT_EQ(order_of(two[0]), "F0 F1 B0 B1 ");
  EXPECT_EQ(order_of(two[2]), "F0 F1 B0 B1 ");
  EXPECT_EQ(order_of(all_ranks(1, 3)[0]), "F0 B0 F1 B1 F2 B2 ");
}

TEST(Schedule1F1B, SendsAndReceivesAroundEachComputation) {
  using K = ActionKind;
  EXPECT_EQ(all_ranks(3, 2)[1], (Schedule{{K::kReceiveForward, 0},
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
      all_ranks(2, 1)[0],
      (Schedule{
          {K::kForward, 0}, {K::kSendForward, 0}, {K::kReceiveBackward, 0}, {K::kBackward, 0}}));
  EXPECT_EQ(
      all_ranks(2, 1)[1],
      (Schedule{
          {K::kReceiveForward, 0}, {K::kForward, 0}, {K::kBackward, 0}, {K::kSendBackward, 0}}));
}

PipelineShape pairs_of(std::int64_t ranks, std::int64_t chunks = 1) {
  PipelineShape shape = shape_of(ranks, chunks);
  shape.paired = true;
  return shape;
}

// Forwards stay ahead of the backwards that they are paired with.
TEST(SchedulePairs, RunAForwardBesideTheBackwardOfAnother) {
  using K = ActionKind;
  EXPECT_EQ(order_of(make_schedules(pairs_of(1), 4)[0]), "F0 F1 B0 F2 B1 F3 B2 B3 ");
  EXPECT_EQ(order_of(make_schedules(pairs_of(1), 1)[0]), "F0 B0 ");
  EXPECT_EQ(order_of(make_schedules(pairs_of(2), 5)[0]), "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4 ");
  std::vector<Schedule> lists = make_schedules(pairs_of(2), 2);
  EXPECT_EQ(lists[1], (Schedule{{K::kReceiveForward, 0},
                                {K::kForward, 0},
                                {K::kReceiveForward, 1},
                                {K::kForward, 1},
                                {K::kBackward, 0},
                                {K::kSendBackward, 0},
                                {K::kBackward, 1},
                                {K::kSendBackward, 1}}));
  EXPECT_TRUE(runs_together(lists[1], 3));
  EXPECT_FALSE(runs_together(make_schedules(shape_of(2), 2)[1], 1)) << "the backward needs it";
}

// With enough micro-batches, no rank idles longer than the fill and drain of the pipeline.
TEST(SchedulePairs, RunThrough) {
  for (std::int64_t ranks : {1, 2, 3, 4, 8}) {
    for (std::int64_t chunks : {1, 2, 3}) {
      if (ranks == 1 && chunks > 1) continue;
      for (std::int64_t batches : {1, 2, 3, 7, 8, 17, 64}) {
        if (chunks > 1 && batches < ranks) continue;
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << chunks << " chunks, " << batches);
        ScheduleReport report = play(pairs_of(ranks, chunks), batches);
        ASSERT_EQ(report.problem, "");
        if (batches < 64) continue;
        auto fill = static_cast<double>(ranks - 1), work = static_cast<double>(batches * chunks);
        EXPECT_LE(report.bubble, 2 * fill / (work + 2 * fill) + 1e-12);
      }
    }
  }
}

TEST(Schedule1F1B, RunsThroughWithItsPeakAndBubble) {
  for (std::int64_t ranks : {1, 2, 3, 4, 8}) {
    for (std::int64_t batches : {1, 2, 3, 8, 17}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << batches << " micro-batches");
      ScheduleReport report = play(shape_of(ranks), batches);
      ASSERT_EQ(report.problem, "");
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(report.peak_in_flight[static_cast<std::size_t>(rank)],
                  std::min(ranks - rank, batches));
      }
      EXPECT_NEAR(report.bubble,
                  static_cast<double>(ranks - 1) / static_cast<double>(batches + ranks - 1), 1e-12);
    }
  }
}

// Megatron's table for two ranks, two chunks and groups of two.
TEST(ScheduleInterleaved, IsMegatronsOrder) {
  std::vector<Schedule> lists = make_schedules(shape_of(2, 2), 4);
  EXPECT_EQ(order_of(lists[0], true),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0 ");
  EXPECT_EQ(order_of(lists[1], true),
            "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0 ");
  // Groups of three with an incomplete last one.
  EXPECT_EQ(order_of(make_forward_schedules(shape_of(2, 2, Kind::k1F1B, 3), 5)[0], true),
            "F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 F3.0 F4.0 F3.1 F4.1 ");
}

// Warmup 2 (P - rank - 1) + (chunks - 1) group, at most all; the bubble is that of 1F1B over the
// chunks.
TEST(ScheduleInterleaved, HasMegatronsWarmupAndBubble) {
  for (std::int64_t ranks : {2, 3, 4, 8}) {
    for (std::int64_t chunks : {2, 3, 4}) {
      for (std::int64_t groups : {1, 2, 3}) {
        for (std::int64_t group : {ranks, ranks + 1}) {
          std::int64_t batches = groups * group;
          SCOPED_TRACE(testing::Message() << ranks << " ranks, " << chunks << " chunks, " << batches
                                          << " micro-batches in groups of " << group);
          PipelineShape shape = shape_of(ranks, chunks, Kind::k1F1B, group);
          std::vector<Schedule> lists = make_schedules(shape, batches);
          for (std::int64_t rank = 0; rank < ranks; ++rank) {
            std::int64_t warmup = 2 * (ranks - rank - 1) + (chunks - 1) * group;
            EXPECT_EQ(leading_forwards(lists[static_cast<std::size_t>(rank)]),
                      std::min(warmup + 1, batches * chunks));
          }
          ScheduleReport report = play_schedules(shape, lists, batches, true);
          ASSERT_EQ(report.problem, "");
          if (group != ranks) continue;
          EXPECT_DOUBLE_EQ(report.span,
                           static_cast<double>(3 * batches * chunks + 3 * (ranks - 1)));
        }
      }
    }
  }
}

// Bubble (P - 1)(F + B - W), and P - M more if the micro-batches do not fill the pipeline.
TEST(ScheduleZeroBubbleH1, HasTheBubbleOfThePaperInTheMemoryOf1F1B) {
  for (std::int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (std::int64_t batches = 1; batches <= 24; ++batches) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << batches << " micro-batches");
      ScheduleReport report = play(shape_of(ranks, 1, Kind::kZeroBubbleH1), batches);
      ASSERT_EQ(report.problem, "");
      std::int64_t idle = ranks - 1 + (ranks > 1 ? std::max<std::int64_t>(ranks - batches, 0) : 0);
      EXPECT_DOUBLE_EQ(report.span, static_cast<double>(3 * batches + idle));
      EXPECT_LE(*std::ranges::max_element(report.peak_in_flight), std::min(ranks, batches));
    }
  }
  ActionCosts costs{2.0, 2.5, 1.5};
  ScheduleReport report = play(shape_of(4, 1, Kind::kZeroBubbleH1), 12, costs);
  EXPECT_DOUBLE_EQ(report.span, 12 * 6.0 + 3 * (2.0 + 2.5 - 1.5));
}

// The last rank cannot start before the first micro-batch has reached it, P - 1 units late; from 2
// P micro-batches on almost nothing is added to that.
TEST(ScheduleZeroBubbleV, HasAlmostNoBubbleInTheMemoryOf1F1B) {
  for (std::int64_t ranks = 2; ranks <= 8; ++ranks) {
    for (std::int64_t batches = 1; batches <= 40; ++batches) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << batches << " micro-batches");
      ScheduleReport report = play(shape_of(ranks, 2, Kind::kZeroBubbleV), batches);
      ASSERT_EQ(report.problem, "");
      EXPECT_LE(*std::ranges::max_element(report.peak_in_flight), 2 * std::min(ranks, batches));
      double idle = report.span - static_cast<double>(6 * batches);
      EXPECT_GE(idle, static_cast<double>(ranks - 1));
      if (batches >= 2 * ranks) {
        EXPECT_LE(idle, static_cast<double>(ranks + 1));
      }
      EXPECT_LE(report.bubble, play(shape_of(ranks, 1, Kind::kZeroBubbleH1), batches).bubble);
    }
  }
}

TEST(ScheduleZeroBubbleV, ExchangesNoMessageAtTheTurn) {
  Schedule turn = make_schedules(shape_of(2, 2, Kind::kZeroBubbleV), 1)[1];
  using K = ActionKind;
  EXPECT_EQ(turn, (Schedule{{K::kReceiveForward, 0, 0},
                            {K::kForward, 0, 0},
                            {K::kForward, 0, 1},
                            {K::kSendForward, 0, 1},
                            {K::kReceiveBackward, 0, 1},
                            {K::kBackwardInput, 0, 1},
                            {K::kBackwardInput, 0, 0},
                            {K::kSendBackward, 0, 0},
                            {K::kBackwardWeight, 0, 0},
                            {K::kBackwardWeight, 0, 1}}));
}

TEST(ScheduleForward, RunsThroughWithoutBackwards) {
  for (PipelineShape shape : {shape_of(1), shape_of(3), shape_of(3, 2), shape_of(4, 3),
                              shape_of(4, 2, Kind::kZeroBubbleV)}) {
    for (std::int64_t batches : {1, 2, 5, 9}) {
      std::vector<Schedule> list = make_forward_schedules(shape, batches);
      EXPECT_EQ(play_schedules(shape, list, batches, false).problem, "");
      EXPECT_NE(play_schedules(shape, list, batches, true).problem, "");
    }
  }
  EXPECT_NE(play_schedules(shape_of(2), all_ranks(2, 5), 5, false).problem, "");
}

// Any sizes, including those that a configuration would refuse.
TEST(Schedules, RunThroughWhateverTheSizes) {
  for (std::uint32_t i = 0; i < 3000; ++i) {
    auto draw = philox({i, 0, 0, 0}, 11);
    std::int64_t ranks = 1 + draw[0] % 9, batches = 1 + draw[1] % 40;
    const ScheduleTraits& traits = schedule_traits()[draw[2] % schedule_traits().size()];
    std::int64_t chunks = traits.chunks > 0 ? traits.chunks : 1 + draw[3] % 5;
    std::int64_t group = draw[3] / 8 % 2 == 0 ? 0 : ranks + draw[3] / 16 % 7;
    PipelineShape shape = shape_of(ranks, chunks, traits.schedule, group);
    SCOPED_TRACE(testing::Message()
                 << ranks << " ranks, " << chunks << " chunks, " << batches << " micro-batches, "
                 << "groups of " << group << ", " << traits.name);
    ScheduleReport report = play(shape, batches);
    ASSERT_EQ(report.problem, "");
    for (std::int64_t peak : report.peak_in_flight) ASSERT_LE(peak, chunks * batches);
    ASSERT_EQ(play_schedules(shape, make_forward_schedules(shape, batches), batches, false).problem,
              "");
  }
}

// Every missing or doubled action, anywhere, is detected.
TEST(PlaySchedules, NoticesEveryMissingAndDoubledAction) {
  std::vector<Schedule> good = all_ranks(3, 4);
  for (std::size_t stage = 0; stage < 3; ++stage) {
    for (std::size_t i = 0; i < good[stage].size(); ++i) {
      auto at = static_cast<std::ptrdiff_t>(i);
      std::vector<Schedule> missing = good, doubled = good;
      missing[stage].erase(missing[stage].begin() + at);
      doubled[stage].insert(doubled[stage].begin() + at, good[stage][i]);
      EXPECT_NE(play_schedules(shape_of(3), missing, 4, true).problem, "") << stage << " " << i;
      EXPECT_NE(play_schedules(shape_of(3), doubled, 4, true).problem, "") << stage << " " << i;
    }
  }
  std::vector<Schedule> missing = good;
  missing[1].erase(
      std::find(missing[1].begin(), missing[1].end(), Action{ActionKind::kBackward, 2}));
  EXPECT_EQ(play_schedules(shape_of(3), missing, 4, true).problem,
            "stage 1: micro-batch 2 has 0 times backward");
}

TEST(PlaySchedules, NoticesAForwardBeforeItsInput) {
  std::vector<Schedule> list = all_ranks(2, 2);
  std::swap(list[1][0], list[1][1]);
  EXPECT_EQ(play_schedules(shape_of(2), list, 2, true).problem,
            "stage 1: micro-batch 0 does forward before receive forward");
}

// Transports deliver in the order sent and do not know micro-batches.
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
  EXPECT_EQ(
      play_schedules(shape_of(2), {forwards({1, 0}, 0), forwards({1, 0}, 1)}, 2, false).problem,
      "");
  EXPECT_EQ(
      play_schedules(shape_of(2), {forwards({0, 1}, 0), forwards({1, 0}, 1)}, 2, false).problem,
      "stage 1 waits for micro-batch 1, but 0 was sent first");
}

// Stage 0 waits for a gradient that stage 1 can send only after the next forward of stage 0.
TEST(PlaySchedules, NoticesADeadlock) {
  using K = ActionKind;
  Schedule first{{K::kForward, 0},         {K::kSendForward, 0}, {K::kReceiveBackward, 0},
                 {K::kBackward, 0},        {K::kForward, 1},     {K::kSendForward, 1},
                 {K::kReceiveBackward, 1}, {K::kBackward, 1}};
  Schedule second{{K::kReceiveForward, 0}, {K::kForward, 0},     {K::kReceiveForward, 1},
                  {K::kForward, 1},        {K::kBackward, 0},    {K::kSendBackward, 0},
                  {K::kBackward, 1},       {K::kSendBackward, 1}};
  EXPECT_NE(play_schedules(shape_of(2), {first, second}, 2, true).problem.find("deadlock: rank"),
            std::string::npos);
}

TEST(PlaySchedules, NoticesAMicroBatchThatDoesNotExist) {
  std::vector<Schedule> list = all_ranks(1, 2);
  list[0].push_back({ActionKind::kForward, 2});
  EXPECT_EQ(play_schedules(shape_of(1), list, 2, true).problem, "rank 0: no micro-batch 2");
}

// The second half of the turn of a V before the first, and wgrad before its dgrad.
TEST(PlaySchedules, NoticesAResultThatIsNotThereYet) {
  PipelineShape v = shape_of(2, 2, Kind::kZeroBubbleV);
  std::vector<Schedule> list = make_schedules(v, 1);
  std::vector<Schedule> early = list;
  std::rotate(early[1].begin(), early[1].begin() + 2, early[1].begin() + 3);
  EXPECT_EQ(play_schedules(v, early, 1, true).problem,
            "deadlock: rank 0 waits to receive forward micro-batch 0 on stage 3");
  std::swap(list[1][6], list[1][8]);
  EXPECT_EQ(play_schedules(v, list, 1, true).problem,
            "stage 1: micro-batch 0 does backward weight before backward input");
}

}  // namespace
}  // namespace bev
