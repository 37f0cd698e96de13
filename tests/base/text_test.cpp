#include "base/text.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {
TEST(Text, ConcatTakesAllKindsOfValues) {
  EXPECT_EQ(concat("a", std::string("b"), 'c', 1, -2L, 3u, std::uint8_t{4}, 0.1, true, 1e300),
            "abc1-2340.1true1e+300");
  EXPECT_EQ(concat(), "");
  EXPECT_EQ(concat(INT64_MIN, " ", UINT64_MAX), "-9223372036854775808 18446744073709551615");
}

TEST(Text, SplitKeepsEmptyParts) {
  EXPECT_EQ(split("a,b,,c", ','), (std::vector<std::string>{"a", "b", "", "c"}));
  EXPECT_EQ(split("", ','), std::vector<std::string>{""});
  EXPECT_EQ(split(",", ','), (std::vector<std::string>{"", ""}));
}

TEST(Text, JoinUndoesSplit) {
  for (std::string text : {"", "a", "a,b,,c", ","}) EXPECT_EQ(join(split(text, ','), ","), text);
  EXPECT_EQ(join({}, ","), "");
}

TEST(Text, TrimTakesBlanksOffBothEnds) {
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
  EXPECT_EQ(trim(""), "");
}

TEST(Text, NearestNameSuggestsOnlyWhatIsNear) {
  std::vector<std::string> names = {"hidden-size", "num-layers", "lr"};
  EXPECT_EQ(nearest_name("hiden-size", names), "hidden-size");
  EXPECT_EQ(nearest_name("num-layer", names), "num-layers");
  EXPECT_EQ(nearest_name("vocabulary", names), "");
  EXPECT_EQ(nearest_name("lr", names), "lr");
  EXPECT_EQ(nearest_name("x", {}), "");
  names = {"tp", "lr", "min-lr", "top-k", "train-iters", "seed", "q-lora-rank"};
  EXPECT_EQ(nearest_name("train-itres", names), "train-iters");
  EXPECT_EQ(nearest_name("sede", names), "seed");
  EXPECT_EQ(nearest_name("trainiters", names), "train-iters");
  for (const char* other : {"stop", "max-lr", "dp", "top", "k-lora-rank", "eval-iters", "l", ""}) {
    EXPECT_EQ(nearest_name(other, names), "") << other;
  }
}

TEST(Text, Units) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1.5 * 1024 * 1024 * 1024), "1.50 GiB");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(124439808), "124.4M");
  EXPECT_EQ(format_duration(3723), "1h 02m 03s");
  EXPECT_EQ(format_duration(62), "1m 02s");
  EXPECT_EQ(format_duration(5.25), "5.2s");
  EXPECT_EQ(format_duration(42), "42s");
}

TEST(Error, CarriesKindMessageAndPlace) {
  try {
    BEV_CHECK(1 > 2, ErrorKind::kConfig, "tp ", 3, ": does not divide ", 8);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_STREQ(error.what(), "tp 3: does not divide 8");
    EXPECT_EQ(error.where().rfind("text_test.cpp:", 0), 0u);
  }
}

TEST(Error, KindIsShapeUnlessGiven) {
  expect_error(ErrorKind::kShape, {"op: got 7"}, [] { BEV_CHECK(false, "op: got ", 7); });
  expect_error(ErrorKind::kInternal, {"never"}, [] { BEV_FAIL(ErrorKind::kInternal, "never"); });
  BEV_CHECK(true, "not evaluated");
}

TEST(Error, EveryKindHasAName) {
  std::vector<std::string> names;
  for (int kind = 0; kind <= static_cast<int>(ErrorKind::kInternal); ++kind) {
    std::string name = name_of(static_cast<ErrorKind>(kind));
    EXPECT_NE(name, "unknown");
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 0) << name;
    names.push_back(name);
  }
}
}  // namespace
}  // namespace bev
