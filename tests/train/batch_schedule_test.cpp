#include "train/batch_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace bev {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

void expect_size(const BatchSize& got, std::int64_t global, std::int64_t running,
                 std::int64_t micro) {
  EXPECT_EQ(got.global, global);
  EXPECT_EQ(got.running, running);
  EXPECT_EQ(got.micro_batches, micro);
}

TEST(BatchSchedule, ConstantFollowsMegatronsTest) {
  BatchSpec spec{.micro_batch_size = 8, .data_parallel_size = 2, .global_batch_size = 32};
  expect_size(BatchSchedule(spec).at(0), 32, 32, 2);
  spec.decrease_if_needed = true;
  spec.data_parallel_size = 3;
  expect_size(BatchSchedule(spec).at(1000), 32, 24, 1);
  spec.data_parallel_size = 2;
  spec.global_batch_size = 33;
  expect_size(BatchSchedule(spec).at(0), 33, 32, 2);
  spec.global_batch_size = 0;
  expect_size(BatchSchedule(spec).at(0), 16, 16, 1);
}

TEST(BatchSchedule, IndivisibleSizeNamesWhatWouldWork) {
  BatchSpec spec{.micro_batch_size = 8, .data_parallel_size = 2, .global_batch_size = 36};
  EXPECT_THAT(batch_problems(spec),
              ElementsAre("--global-batch-size: 36 is not divisible by micro batch size 8 x "
                          "data-parallel size 2 = 16; use 32 or 48, or --micro-batch-size 6, 3, 2, "
                          "1, or --decrease-batch-size-if-needed"));
  try {
    BatchSchedule(spec).at(0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("32 or 48"));
  }
  spec.global_batch_size = 10;
  spec.decrease_if_needed = true;  // rounding down would leave nothing
  EXPECT_THAT(batch_problems(spec), ElementsAre(HasSubstr("; use 16")));
}

TEST(BatchSchedule, StepsFollowMegatronsTest) {
  BatchSpec spec{
      .data_parallel_size = 512,
      .step_schedule = "0:256 200000:512 600000:1024 1500000:2048 3000000:4096 6000000:6144"};
  BatchSchedule schedule(spec);  // the first size does not divide, but may be in the past
  EXPECT_THROW(schedule.at(0), Error);
  EXPECT_THROW(schedule.at(199999), Error);
  expect_size(schedule.at(200000), 512, 512, 1);
  expect_size(schedule.at(1500000), 2048, 2048, 4);
  expect_size(schedule.at(6000000), 6144, 6144, 12);
  EXPECT_EQ(batch_problems(spec).size(), 1u);
  EXPECT_TRUE(batch_problems(spec, 200000).empty());
}

TEST(BatchSchedule, StepsAreGivenInTokens) {
  BatchSpec spec{.step_schedule = "0:768, 1.5k:1K 250B:1536", .seq_length = 1000};
  BatchSchedule schedule(spec);
  ASSERT_EQ(schedule.steps().size(), 3u);
  EXPECT_EQ(schedule.steps()[1].from_samples, 1);
  EXPECT_EQ(schedule.at(1).global, 1000);
  EXPECT_EQ(schedule.at(249'999'999).global, 1000);
  EXPECT_EQ(schedule.at(250'000'000).global, 1536);
  spec.step_schedule = "1T:4 0:2 3M:3";
  spec.seq_length = 4096;
  EXPECT_EQ(BatchSchedule(spec).at(732).global, 3);
  EXPECT_EQ(BatchSchedule(spec).at(731).global, 2);
  EXPECT_EQ(BatchSchedule(spec).at(244'140'625).global, 4);
}

TEST(BatchSchedule, StepProblemsAreReportedTogether) {
  BatchSpec spec{.step_schedule = "0:8 x:4 5B 10:0 nan:1 -1:2"};
  EXPECT_THAT(batch_problems(spec),
              ElementsAre(HasSubstr("\"x:4\""), HasSubstr("\"5B\""), HasSubstr("\"10:0\""),
                          HasSubstr("\"nan:1\""), HasSubstr("\"-1:2\"")));
  spec.step_schedule = "5:8 10:16";
  EXPECT_THAT(batch_problems(spec), ElementsAre(HasSubstr("as in 0:8")));
  spec.step_schedule = "0:8 10:16 11:32";
  spec.seq_length = 2;
  EXPECT_THAT(batch_problems(spec), ElementsAre(HasSubstr("both start at sample 5")));
  spec = {.global_batch_size = 8,
          .step_schedule = "0:8",
          .rampup = {1, 1, 1},
          .decrease_if_needed = true};
  EXPECT_THAT(batch_problems(spec), ElementsAre(HasSubstr("--rampup-batch-size"),
                                                HasSubstr("--decrease-batch-size-if-needed")));
  EXPECT_THROW(BatchSchedule{spec}, Error);
  spec = {.global_batch_size = 4, .step_schedule = "0:4 100:8"};
  EXPECT_THAT(batch_problems(spec), ElementsAre(HasSubstr("--global-batch-size: 4 is not 8")));
  spec.global_batch_size = 8;
  EXPECT_THAT(batch_problems(spec), testing::IsEmpty());
  spec = {.micro_batch_size = 0, .data_parallel_size = -1, .seq_length = 0};
  EXPECT_EQ(batch_problems(spec).size(), 3u);
}

// The rule of Megatron-core 0.16.
std::int64_t classic(std::int64_t start, std::int64_t increment, std::int64_t samples,
                     std::int64_t target, std::int64_t consumed) {
  if (consumed > samples) return target;
  double per_increment =
      static_cast<double>(samples) / static_cast<double>((target - start) / increment);
  return start +
         increment * static_cast<std::int64_t>(static_cast<double>(consumed) / per_increment);
}

TEST(BatchSchedule, RampUpFollowsTheClassicRule) {
  struct Row {
    std::int64_t start, increment, samples, target;
  };
  const Row rows[] = {
      {2, 2, 100, 16}, {1, 1, 7, 50}, {4, 4, 1, 32}, {3, 7, 1000, 31}, {1, 1, 333, 11}};
  for (const Row& row : rows) {
    BatchSchedule schedule(BatchSpec{.global_batch_size = row.target,
                                     .rampup = {row.start, row.increment, row.samples}});
    for (std::int64_t consumed = 0; consumed <= row.samples + 2; ++consumed) {
      ASSERT_EQ(schedule.at(consumed).global,
                classic(row.start, row.increment, row.samples, row.target, consumed))
          << consumed;
    }
  }
}

TEST(BatchSchedule, RampUpWithoutLengthIsConstant) {
  EXPECT_EQ(BatchSchedule(BatchSpec{.global_batch_size = 8, .rampup = {8, 2, 100}}).at(0).global,
            8);
  EXPECT_EQ(BatchSchedule(BatchSpec{.global_batch_size = 8, .rampup = {2, 2, 0}}).at(0).global, 8);
}

TEST(BatchSchedule, RampUpProblems) {
  BatchSpec spec{.global_batch_size = 17, .rampup = {2, 4, 100}};
  EXPECT_THAT(batch_problems(spec), ElementsAre(HasSubstr("14 or 18 would be reached")));
  spec.rampup = {2, 4};
  EXPECT_THAT(batch_problems(spec), ElementsAre(HasSubstr("takes 3 numbers")));
  spec.rampup = {0, 4, 9};
  EXPECT_THAT(batch_problems(spec), ElementsAre(HasSubstr("1 or more")));
  spec = {.micro_batch_size = 4, .global_batch_size = 16, .rampup = {2, 2, 100}};
  EXPECT_EQ(batch_problems(spec).size(), 4u);      // 2, 6, 10, 14
  EXPECT_EQ(batch_problems(spec, 60).size(), 2u);  // 10 and 14 are still ahead
  spec = {.micro_batch_size = 2,
          .global_batch_size = 7,
          .rampup = {3, 2, 100},
          .decrease_if_needed = true};
  expect_size(BatchSchedule(spec).at(50), 5, 4, 2);
}

TEST(BatchSchedule, CountsSamplesAndIterations) {
  const BatchSpec specs[] = {{.global_batch_size = 5},
                             {.step_schedule = "0:3 10:5 11:7 40:2"},
                             {.micro_batch_size = 2,
                              .global_batch_size = 15,
                              .rampup = {3, 2, 37},
                              .decrease_if_needed = true}};
  for (const BatchSpec& spec : specs) {
    BatchSchedule schedule(spec);
    std::int64_t consumed = 0;
    for (std::int64_t iteration = 0; iteration < 40; ++iteration) {
      ASSERT_EQ(schedule.samples_after(iteration), consumed);
      std::int64_t next = consumed + schedule.at(consumed).running;
      for (std::int64_t samples = consumed; samples < next; ++samples) {
        ASSERT_EQ(schedule.iterations_within(samples), iteration) << samples;
      }
      consumed = next;
    }
  }
}

TEST(BatchSchedule, AReplayHasTheSizesOfItsFile) {
  BatchSpec spec;
  spec.micro_batch_size = 2;
  spec.data_parallel_size = 2;
  spec.replay = {3, 3, 5, 1};
  EXPECT_TRUE(batch_problems(spec).empty());
  BatchSchedule batches(spec);
  std::vector<std::int64_t> sizes, micro_batches;
  for (std::int64_t at : {0, 3, 6, 11}) {
    sizes.push_back(batches.at(at).running);
    micro_batches.push_back(batches.at(at).micro_batches);
  }
  EXPECT_EQ(sizes, spec.replay);
  EXPECT_EQ(micro_batches, (std::vector<std::int64_t>{1, 1, 2, 1}));
  for (auto [iterations, samples] : {std::pair{1, 3}, {2, 6}, {3, 11}, {4, 12}, {6, 14}}) {
    EXPECT_EQ(batches.samples_after(iterations), samples);
    EXPECT_EQ(batches.iterations_within(samples), iterations);
  }
  EXPECT_EQ(batches.iterations_within(10), 2);
}

}  // namespace
}  // namespace bev
