#include "checkpoint/box.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/text.h"

namespace bev {
namespace {

std::vector<Shape> some_shapes() {
  return {{}, {1}, {7}, {3, 5}, {1, 6}, {4, 1}, {2, 3, 4}, {3, 1, 2, 2}, {2, 2, 2, 2, 3}};
}

// Flat positions of a box's elements in a tensor, in the box's order.
std::vector<std::int64_t> positions(const Shape& shape, const Box& box) {
  std::vector<std::int64_t> out;
  for (std::int64_t flat = 0; flat < shape.numel(); ++flat) {
    std::int64_t rest = flat;
    bool inside = true;
    for (int i = shape.ndim() - 1; i >= 0; --i) {
      std::int64_t at = rest % shape[i];
      rest /= shape[i];
      inside &= at >= box.begin[i] && at < box.end[i];
    }
    if (inside) out.push_back(flat);
  }
  return out;
}

TEST(Box, EveryFlatRangeIsAFewContiguousBoxesInOrder) {
  for (const Shape& shape : some_shapes()) {
    for (std::int64_t begin = 0; begin <= shape.numel(); ++begin) {
      for (std::int64_t end = begin; end <= shape.numel(); ++end) {
        std::vector<std::int64_t> covered;
        std::vector<Box> boxes = boxes_of_range(shape, {begin, end});
        EXPECT_LE(boxes.size(), static_cast<std::size_t>(std::max(2 * shape.ndim() - 1, 1)));
        for (const Box& box : boxes) {
          for (std::int64_t at : positions(shape, box)) covered.push_back(at);
        }
        std::vector<std::int64_t> expected(static_cast<std::size_t>(end - begin));
        std::iota(expected.begin(), expected.end(), begin);
        EXPECT_EQ(covered, expected) << to_text(shape) << " " << begin << " " << end;
      }
    }
  }
}

// The boxes must agree with element_runs, the map between local and global elements.
void expect_map(const Shape& shape, const Split& split, std::int64_t parts, std::int64_t index) {
  Shape local = split.local_shape(shape, {parts, index});
  std::vector<std::int64_t> global_of(static_cast<std::size_t>(local.numel()));
  for (const ElementRun& run : element_runs(shape, split, {parts, index})) {
    std::iota(global_of.begin() + run.local, global_of.begin() + run.local + run.count, run.global);
  }
  for (Range range : {Range{0, local.numel()}, Range{local.numel() / 3, local.numel()},
                      Range{1, local.numel() / 2}, Range{0, 0}}) {
    if (range.begin > range.end) continue;
    std::set<std::int64_t> seen;
    for (const HeldBox& held : held_boxes(shape, split, {parts, index}, range)) {
      std::vector<std::int64_t> from = positions(local, held.local);
      std::vector<std::int64_t> to = positions(shape, held.global);
      ASSERT_EQ(from.size(), to.size());
      for (std::size_t i = 0; i < from.size(); ++i) {
        EXPECT_EQ(global_of[static_cast<std::size_t>(from[i])], to[i]);
        EXPECT_TRUE(from[i] >= range.begin && from[i] < range.end);
        EXPECT_TRUE(seen.insert(from[i]).second);
      }
    }
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), range.size());
  }
}

TEST(Box, HeldBoxesFollowTheOneMapOfElements) {
  for (std::int64_t parts : {1, 2, 3, 5}) {
    for (std::int64_t index = 0; index < parts; ++index) {
      expect_map({6, 4}, {}, parts, index);
      expect_map({7, 3}, {.dim = 0, .segments = {}}, parts, index);
      expect_map({3, 7}, {.dim = 1, .segments = {}}, parts, index);
      expect_map({12, 2}, {.dim = 0, .segments = {6, 3, 3}}, parts, index);
      expect_map({2, 12}, {.dim = 1, .segments = {5, 4, 3}}, parts, index);
      expect_map({2, 9, 2}, {.dim = 1, .segments = {1, 8}}, parts, index);
      expect_map({10}, {.dim = 0, .segments = {5, 5}}, parts, index);
    }
  }
}

TEST(Box, RunsOfWhatTwoBoxesShareCopyEveryElementToItsPlace) {
  Shape shape{4, 5, 3};
  std::vector<Box> boxes = {{{0, 0, 0}, {4, 5, 3}}, {{1, 0, 0}, {3, 5, 3}}, {{0, 2, 0}, {4, 4, 3}},
                            {{2, 1, 1}, {4, 5, 2}}, {{0, 0, 1}, {4, 5, 3}}, {{3, 4, 2}, {4, 5, 3}}};
  for (const Box& a : boxes) {
    for (const Box& b : boxes) {
      std::vector<std::int64_t> from = positions(shape, a), to = positions(shape, b), both;
      std::ranges::set_intersection(from, to, std::back_inserter(both));
      std::optional<Box> common = intersection(a, b);
      ASSERT_EQ(common.has_value(), !both.empty());
      if (!common) continue;
      std::vector<std::int64_t> copied;
      for (const BoxRun& run : common_runs(a, b, *common)) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          EXPECT_EQ(from.at(static_cast<std::size_t>(run.a + i)),
                    to.at(static_cast<std::size_t>(run.b + i)));
          copied.push_back(from[static_cast<std::size_t>(run.a + i)]);
        }
      }
      EXPECT_EQ(copied, both);
    }
  }
}

TEST(Box, TextReadsBackAndNothingElseIsRead) {
  for (const Box& box : {Box{}, Box{{0}, {4}}, Box{{3, 0}, {17, 1}}}) {
    EXPECT_EQ(parse_box(concat(box)), box);
  }
  EXPECT_EQ(concat(Box{{3, 0}, {17, 1}}), "[3:17,0:1]");
  for (const char* bad :
       {"", "[", "]", "[0:1", "0:1]", "[0]", "[0:0]", "[2:1]", "[-1:2]", "[0:1,]", "[,]", "[ 0:1]",
        "[00:1]", "[0:1:2]", "[0:99999999999999999999]", "[0:1,0:1,0:1,0:1,0:1,0:1]", "[+0:1]"}) {
    EXPECT_FALSE(parse_box(bad)) << bad;
  }
}

}  // namespace
}  // namespace bev
