#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace bev {
namespace {

using Style = LrSchedule::Style;
using WsdStyle = LrSchedule::WsdStyle;

// The schedule of Megatron's unit test.
LrSchedule megatron(Style style) {
  return {.max_lr = 0.1,
          .min_lr = 0.001,
          .init_lr = 0.01,
          .warmup_steps = 100,
          .decay_steps = 1000,
          .style = style,
          .wsd_decay_steps = 200};
}

TEST(LrSchedule, LinearFollowsMegatronsTest) {
  LrSchedule s = megatron(Style::kLinear);
  EXPECT_DOUBLE_EQ(s.lr(0), 0.01);
  EXPECT_DOUBLE_EQ(s.lr(50), 0.055);
  EXPECT_DOUBLE_EQ(s.lr(100), 0.1);
  EXPECT_DOUBLE_EQ(s.lr(500), 0.1 - 0.099 * 400 / 900);
  EXPECT_DOUBLE_EQ(s.lr(1000), 0.001);
  EXPECT_EQ(s.lr(1001), 0.001);
}

TEST(LrSchedule, CosineFollowsMegatronsTest) {
  LrSchedule s = megatron(Style::kCosine);
  EXPECT_DOUBLE_EQ(s.lr(500), 0.001 + 0.099 * 0.5 * (std::cos(std::numbers::pi * 400 / 900) + 1.0));
  EXPECT_DOUBLE_EQ(s.lr(550), 0.0505);
  EXPECT_DOUBLE_EQ(s.lr(1000), 0.001);
  EXPECT_EQ(s.lr(5000), 0.001);
}

TEST(LrSchedule, ConstantIgnoresTheDecayLength) {
  LrSchedule s = megatron(Style::kConstant);
  EXPECT_DOUBLE_EQ(s.lr(25), 0.0325);
  EXPECT_EQ(s.lr(101), 0.1);
  EXPECT_EQ(s.lr(100000), 0.1);
}

TEST(LrSchedule, InverseSquareRootIsBoundedBelow) {
  LrSchedule s = megatron(Style::kInverseSquareRoot);
  EXPECT_DOUBLE_EQ(s.lr(100), 0.1);
  EXPECT_DOUBLE_EQ(s.lr(400), 0.05);
  EXPECT_EQ(s.lr(1001), 0.001);
  s.min_lr = 0.04;
  EXPECT_EQ(s.lr(900), 0.04);
  s = {.max_lr = 0.1, .decay_steps = 1000, .style = Style::kInverseSquareRoot};
  EXPECT_EQ(s.lr(0), 0.1);  // without warmup both square roots are at least 1
  EXPECT_EQ(s.lr(4), 0.05);
}

TEST(LrSchedule, WsdHoldsThenDecays) {
  LrSchedule s{.max_lr = 1.0, .decay_steps = 1000, .style = Style::kWsd, .wsd_decay_steps = 200};
  struct Row {
    WsdStyle style;
    double quarter, half;
  };
  const std::vector<Row> rows = {
      {WsdStyle::kExponential, 2 * std::pow(0.5, 0.25) - 1, std::numbers::sqrt2 - 1},
      {WsdStyle::kLinear, 0.75, 0.5},
      {WsdStyle::kCosine, 0.5 * (std::numbers::sqrt2 / 2 + 1), 0.5},
      {WsdStyle::kMinusSqrt, 0.5, 1 - std::numbers::sqrt2 / 2},
  };
  for (const Row& row : rows) {
    s.wsd_style = row.style;
    EXPECT_EQ(s.lr(0), 1.0);
    EXPECT_EQ(s.lr(800), 1.0);
    EXPECT_DOUBLE_EQ(s.lr(850), row.quarter);
    EXPECT_DOUBLE_EQ(s.lr(900), row.half);
    EXPECT_NEAR(s.lr(1000), 0.0, 1e-16);
    EXPECT_EQ(s.lr(1001), 0.0);
  }
  s.wsd_style = WsdStyle::kExponential;
  EXPECT_NEAR(s.lr(900), 0.41421, 5e-6);
}

TEST(LrSchedule, WarmUpMayEndWithinASample) {
  LrSchedule s{.max_lr = 1.0, .warmup_steps = 2.5, .decay_steps = 12.5};
  EXPECT_DOUBLE_EQ(s.lr(2), 0.8);
  EXPECT_DOUBLE_EQ(s.lr(3), 0.95);
}

TEST(LrSchedule, NoWarmUpStartsAtTheTop) {
  LrSchedule s{.max_lr = 1.0, .decay_steps = 10};
  EXPECT_EQ(s.lr(0), 1.0);
  EXPECT_EQ(s.lr(5), 0.5);
}

TEST(LrSchedule, ReportsAllProblemsAtOnce) {
  EXPECT_TRUE(megatron(Style::kWsd).problems().empty());
  LrSchedule s{.max_lr = 0.1, .min_lr = 0.2, .init_lr = 0.3, .warmup_steps = 20, .decay_steps = 10};
  EXPECT_EQ(s.problems().size(), 3u);
  s = megatron(Style::kWsd);
  s.wsd_decay_steps = 0;
  ASSERT_EQ(s.problems().size(), 1u);
  EXPECT_NE(s.problems()[0].find("--lr-wsd-decay-iters"), std::string::npos);
}

TEST(WeightDecaySchedule, FollowsMegatronsTest) {
  WeightDecaySchedule s{0.0, 0.1, WeightDecaySchedule::Style::kLinear, 1000};
  EXPECT_EQ(s.weight_decay(500), 0.05);
  EXPECT_DOUBLE_EQ(s.weight_decay(100), 0.01);
  EXPECT_EQ(s.weight_decay(1001), 0.1);
  s.style = WeightDecaySchedule::Style::kCosine;
  EXPECT_DOUBLE_EQ(s.weight_decay(500), 0.05 * (std::cos(std::numbers::pi * 0.5) + 1.0));
  EXPECT_DOUBLE_EQ(s.weight_decay(250), 0.05 * (1.0 - std::numbers::sqrt2 / 2));
  EXPECT_EQ(s.weight_decay(0), 0.0);
  s = {0.1, 0.1, WeightDecaySchedule::Style::kConstant, 1000};
  EXPECT_EQ(s.weight_decay(500), 0.1);
}

TEST(WeightDecaySchedule, ReportsAllProblemsAtOnce) {
  WeightDecaySchedule s{0.1, 0.0, WeightDecaySchedule::Style::kConstant, 0};
  EXPECT_EQ(s.problems().size(), 2u);
  s = {0.0, 0.1, WeightDecaySchedule::Style::kLinear, 0};
  EXPECT_EQ(s.problems().size(), 1u);
}

}  // namespace
}  // namespace bev
