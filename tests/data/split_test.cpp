#include "data/gpt/split.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace bev {
namespace {

TEST(SplitBounds, RoundsCumulativeSharesHalfToEven) {
  using Bounds = std::array<std::int64_t, 4>;
  EXPECT_EQ(split_bounds("969,30,1", 1000), (Bounds{0, 969, 999, 1000}));
  EXPECT_EQ(split_bounds("1", 10), (Bounds{0, 10, 10, 10}));
  EXPECT_EQ(split_bounds("1,1", 5), (Bounds{0, 2, 5, 5}));
  EXPECT_EQ(split_bounds("1,1", 7), (Bounds{0, 4, 7, 7}));
  EXPECT_EQ(split_bounds(" 0.5, 0.25 ,0.25", 8), (Bounds{0, 4, 6, 8}));
  EXPECT_EQ(split_bounds("0,0,3", 8), (Bounds{0, 0, 0, 8}));
  EXPECT_EQ(split_bounds("0.1,0.2,0.7", 1'000'000'000'000)[3], 1'000'000'000'000);
  EXPECT_EQ(split_bounds("98,1,1", 0), (Bounds{0, 0, 0, 0}));
}

TEST(SplitBounds, RejectsWhatIsNotWeights) {
  for (const char* bad : {"", ",", "1,,1", "1,1,1,1", "-1,2", "a", "1;1", "nan", "inf,1", "0,0,0",
                          "1e308,1e308", "1x", "0x10", "1,2,"}) {
    expect_error(ErrorKind::kConfig, {"split"}, [&] { split_bounds(bad, 100); });
  }
}

}  // namespace
}  // namespace bev
