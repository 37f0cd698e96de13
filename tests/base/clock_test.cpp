#include "base/clock.h"

#include <gtest/gtest.h>

#include <ctime>

namespace bev {
namespace {

TEST(Clock, MonotonicNeverGoesBack) {
  double before = monotonic_seconds();
  for (int i = 0; i < 1000; ++i) {
    double now = monotonic_seconds();
    ASSERT_GE(now, before);
    before = now;
  }
}

TEST(Clock, TimestampIsLocalTimeWithMicroseconds) {
  std::tm day{};
  day.tm_year = 2025 - 1900;
  day.tm_mon = 0;
  day.tm_mday = 2;
  day.tm_hour = 13;
  day.tm_min = 4;
  day.tm_sec = 5;
  std::int64_t seconds = std::mktime(&day);
  EXPECT_EQ(local_timestamp(seconds * 1'000'000 + 78), "2025-01-02 13:04:05.000078");
  EXPECT_EQ(local_timestamp(seconds * 1'000'000 - 1), "2025-01-02 13:04:04.999999");
  EXPECT_EQ(local_timestamp().size(), 26u);
  EXPECT_GT(unix_microseconds(), 1'700'000'000'000'000);
}

}  // namespace
}  // namespace bev
