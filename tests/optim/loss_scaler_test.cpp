#include "optim/loss_scaler.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace bev {
namespace {

constexpr double kTwo32 = 4294967296.0;

TEST(LossScaler, HysteresisIsNotRefilledByABackoff) {
  LossScaler scaler = LossScaler::dynamic({});
  EXPECT_EQ(scaler.scale(), kTwo32);
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), kTwo32);
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), kTwo32 / 2);
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), kTwo32 / 4);
  for (int i = 0; i < 999; ++i) EXPECT_FALSE(scaler.update(false));
  EXPECT_TRUE(scaler.update(true));  // no growth in between: halves at once
  EXPECT_EQ(scaler.scale(), kTwo32 / 8);
}

TEST(LossScaler, GrowsAfterAWindowAndRefillsHysteresis) {
  LossScaler scaler = LossScaler::dynamic({.initial = 8, .min = 1, .window = 3, .hysteresis = 2});
  scaler.update(true);
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_FALSE(scaler.update(false));
  EXPECT_FALSE(scaler.update(false));
  EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_FALSE(scaler.update(true));  // hysteresis was refilled
  EXPECT_EQ(scaler.scale(), 8);
}

TEST(LossScaler, AnOverflowRestartsTheWindow) {
  LossScaler scaler = LossScaler::dynamic({.initial = 8, .min = 1, .window = 2, .hysteresis = 5});
  scaler.update(false);
  scaler.update(true);
  EXPECT_FALSE(scaler.update(false));
  EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 16);
}

TEST(LossScaler, NeverFallsBelowTheMinimum) {
  LossScaler scaler = LossScaler::dynamic({.initial = 4, .min = 3, .window = 2, .hysteresis = 1});
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 3);
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 3);
}

TEST(LossScaler, ConstantStays) {
  LossScaler scaler = LossScaler::constant(128);
  EXPECT_FALSE(scaler.update(true));
  for (int i = 0; i < 2000; ++i) EXPECT_FALSE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_EQ(scaler.inverse_scale(), 1.0f / 128);
}

TEST(LossScaler, RestoredStateContinuesTheSame) {
  DynamicLossScale rules{.initial = 64, .min = 1, .window = 3, .hysteresis = 2};
  LossScaler straight = LossScaler::dynamic(rules), resumed = LossScaler::dynamic(rules);
  const bool overflows[] = {false, true, false, false, true, true, false, false, false, true};
  for (int i = 0; i < 10; ++i) {
    if (i == 4) resumed.restore(straight.state());
    straight.update(overflows[i]);
    if (i >= 4) resumed.update(overflows[i]);
  }
  EXPECT_EQ(straight.state(), resumed.state());
  LossScaler fixed = LossScaler::constant(7);
  fixed.restore(straight.state());
  EXPECT_EQ(fixed.scale(), 7);
}

TEST(LossScaler, RefusesBadRules) {
  EXPECT_THROW(LossScaler::constant(0), Error);
  EXPECT_THROW(LossScaler::dynamic({.initial = 1, .min = 2}), Error);
  EXPECT_THROW(LossScaler::dynamic({.window = 0}), Error);
  EXPECT_THROW(LossScaler::dynamic({.hysteresis = 0}), Error);
}

}  // namespace
}  // namespace bev
