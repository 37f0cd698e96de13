#include "comm/placement.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace bev {
namespace {

TEST(ShardRange, CoversEverythingOnceAndEvenly) {
  for (std::int64_t n : {0, 1, 2, 5, 7, 64, 100}) {
    for (std::int64_t parts : {1, 2, 3, 7, 8}) {
      std::int64_t next = 0;
      for (std::int64_t i = 0; i < parts; ++i) {
        Range range = shard_range(n, parts, i);
        EXPECT_EQ(range.begin, next);
        EXPECT_TRUE(range.size() == n / parts || range.size() == n / parts + 1);
        next = range.end;
      }
      EXPECT_EQ(next, n);
      EXPECT_GE(shard_range(n, parts, 0).size(), shard_range(n, parts, parts - 1).size());
    }
  }
}

struct SplitCase {
  Shape global;
  Split split;
};
const SplitCase kCases[] = {
    {{7}, {Axis::kTp, -1, {}}},
    {{7}, {Axis::kTp, 0, {}}},
    {{6, 5}, {Axis::kTp, -1, {}}},
    {{6, 5}, {Axis::kTp, 0, {}}},
    {{6, 5}, {Axis::kTp, 1, {}}},
    {{12, 3}, {Axis::kTp, 0, {6, 3, 3}}},
    {{11, 2}, {Axis::kTp, 0, {5, 6}}},
    {{3, 10}, {Axis::kTp, 1, {4, 6}}},
    {{2, 9, 3}, {Axis::kTp, 1, {5, 1, 3}}},
};

TEST(ElementRuns, EveryElementLiesOnExactlyOneRank) {
  for (const SplitCase& test : kCases) {
    for (std::int64_t parts : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message()
                   << to_text(test.global) << " dim " << test.split.dim << " over " << parts);
      std::vector<int> owners(static_cast<std::size_t>(test.global.numel()), 0);
      for (std::int64_t index = 0; index < parts; ++index) {
        std::int64_t local = 0;
        for (const ElementRun& run : element_runs(test.global, test.split, {parts, index})) {
          EXPECT_EQ(run.local, local) << "runs follow each other";
          EXPECT_GT(run.count, 0);
          for (std::int64_t i = 0; i < run.count; ++i) {
            ++owners[static_cast<std::size_t>(run.global + i)];
          }
          local += run.count;
        }
        EXPECT_EQ(local, test.split.local_shape(test.global, {parts, index}).numel());
      }
      // A replicated parameter is whole on every rank.
      int expected = test.split.dim < 0 ? static_cast<int>(parts) : 1;
      for (int count : owners) EXPECT_EQ(count, expected);
    }
  }
}

// Row by row: the local tensor has the selected indices of the dim, in order.
TEST(ElementRuns, TakeEachSegmentsPart) {
  Shape global{3, 10};
  Split split{Axis::kTp, 1, {4, 6}};
  std::vector<std::int64_t> got;
  for (const ElementRun& run : element_runs(global, split, {2, 1})) {
    for (std::int64_t i = 0; i < run.count; ++i) got.push_back(run.global + i);
  }
  std::vector<std::int64_t> expected;
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t column : {2, 3, 7, 8, 9}) expected.push_back(row * 10 + column);
  }
  EXPECT_EQ(got, expected);
  EXPECT_EQ(split.local_shape(global, {2, 1}), (Shape{3, 5}));
}

TEST(ElementRuns, MergeWhatIsOnePiece) {
  EXPECT_EQ(element_runs({8, 4}, {Axis::kTp, 0, {}}, {2, 1}).size(), 1u);
  EXPECT_EQ(element_runs({8, 4}, {Axis::kTp, 1, {}}, {1, 0}).size(), 1u);
  EXPECT_EQ(element_runs({8, 4}, {Axis::kTp, 0, {4, 4}}, {2, 0}).size(), 2u);
}

TEST(Split, SegmentsThatDoNotAddUpAreAnError) {
  Split split{Axis::kTp, 0, {3, 4}};
  expect_error(ErrorKind::kInternal, {"7", "[8, 2]"}, [&] { split.local_shape({8, 2}, {2, 0}); });
}

TEST(Placement, IsWrittenByAxis) {
  EXPECT_EQ(to_text(Placement()), "replicated");
  EXPECT_EQ(
      to_text(
          Placement().with(Axis::kDp, PlaceState::kShard0).with(Axis::kTp, PlaceState::kPartial)),
      "tp: partial, dp: shard(0)");
}

}  // namespace
}  // namespace bev
