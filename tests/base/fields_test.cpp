#include "base/fields.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/problems.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

enum class Shade : std::uint8_t { kDark, kLight };

struct Everything {
  std::int64_t count = 3;
  double rate = 0.5;
  bool on = true;
  std::string name = "x";
  std::vector<std::int64_t> sizes = {1, 2};
  std::vector<double> shares;
  std::vector<std::string> parts;
  Shade shade = Shade::kDark;

  void fields(FieldList& list) {
    list.section("first");
    list.add("count", count, "").alias("n").min(1).max(1000);
    list.add("rate", rate, "").above(0).below(1).defaults_to("a half");
    list.add("on", on, "").negated_by("disable-it");
    list.section("second");
    list.add("name", name, "");
    list.add("sizes", sizes, "").min(0).limit(99);
    list.add("shares", shares, "");
    list.add("parts", parts, "").one_of({"core_attn", "mlp"});
    list.add("shade", shade,
             {{"dark", Shade::kDark}, {"light", Shade::kLight}, {"bright", Shade::kLight}}, "");
    list.shorthand("tiny", {{"count", "1"}, {"sizes", "1"}}, "small");
  }
};

class Fields : public testing::Test {
 protected:
  Fields() { value.fields(list); }
  std::string set(const char* name, std::string_view text) {
    return list.find(name)->set_text(text);
  }
  Everything value;
  FieldList list;
};

TEST_F(Fields, ReadEveryType) {
  EXPECT_EQ(set("count", " 7 "), "");
  EXPECT_EQ(value.count, 7);
  EXPECT_EQ(set("rate", "2.5e-1"), "");
  EXPECT_EQ(value.rate, 0.25);
  EXPECT_EQ(set("on", "No"), "");
  EXPECT_FALSE(value.on);
  EXPECT_EQ(set("name", " a b "), "");
  EXPECT_EQ(value.name, " a b ");
  EXPECT_EQ(set("sizes", "[4, 5,6]"), "");
  EXPECT_EQ(value.sizes, (std::vector<std::int64_t>{4, 5, 6}));
  EXPECT_EQ(set("shares", "0.5,-1e3"), "");
  EXPECT_EQ(value.shares, (std::vector<double>{0.5, -1000}));
  EXPECT_EQ(set("parts", "MLP, core-attn"), "");
  EXPECT_EQ(value.parts, (std::vector<std::string>{"mlp", "core_attn"}));
  EXPECT_EQ(set("shade", "Bright"), "");
  EXPECT_EQ(value.shade, Shade::kLight);
}

TEST_F(Fields, TextReadsBackTheSame) {
  set("rate", "0.1");
  set("shares", "1e-5,3");
  set("shade", "bright");
  for (const auto& entry : list.entries()) {
    std::string text = entry->field.text();
    EXPECT_EQ(entry->field.set_text(text), "") << entry->field.name();
    EXPECT_EQ(entry->field.text(), text);
  }
  EXPECT_EQ(value.rate, 0.1);
  EXPECT_EQ(list.find("shade")->text(), "light");
  EXPECT_EQ(list.find("sizes")->text(), "1,2");
}

TEST_F(Fields, EmptyTextEmptiesAList) {
  EXPECT_EQ(set("sizes", ""), "");
  EXPECT_TRUE(value.sizes.empty());
  EXPECT_EQ(list.find("sizes")->default_text(), "none");
}

TEST_F(Fields, BadValuesAreNamedAndChangeNothing) {
  EXPECT_EQ(set("count", "abc"), "'abc' is not an integer");
  EXPECT_EQ(set("count", ""), "'' is not an integer");
  EXPECT_EQ(set("count", "1.5"), "'1.5' is not an integer");
  EXPECT_EQ(set("count", "0x10"), "'0x10' is not an integer");
  EXPECT_EQ(set("count", "12 34"), "'12 34' is not an integer");
  EXPECT_EQ(set("count", "99999999999999999999"),
            "'99999999999999999999' is beyond what an integer can hold");
  EXPECT_EQ(set("count", "0"), "0 is out of range; it must be >= 1 and <= 1000");
  EXPECT_EQ(set("rate", "nan"), "'nan' is not a number");
  EXPECT_EQ(set("rate", "inf"), "'inf' is not a number");
  EXPECT_EQ(set("rate", "1e999"), "'1e999' is beyond what a number can hold");
  EXPECT_EQ(set("rate", "0"), "0 is out of range; it must be > 0 and < 1");
  EXPECT_EQ(set("rate", "1"), "1 is out of range; it must be > 0 and < 1");
  EXPECT_EQ(set("on", "perhaps"), "'perhaps' is neither true nor false");
  EXPECT_EQ(set("sizes", "1,,2"), "item 2: '' is not an integer");
  EXPECT_EQ(set("sizes", "3,-1"), "item 2: -1 is out of range; it must be >= 0 and <= 99");
  EXPECT_EQ(set("parts", "mlp,moe"), "'moe' is not one of core_attn, mlp");
  EXPECT_EQ(set("shade", "grey"), "'grey' is not one of dark, light, bright");
  std::vector<std::string> two = {"1", "2"};
  EXPECT_EQ(list.find("count")->set_items(two), "takes one value, not 2 (1 2)");
  EXPECT_EQ(value.count, 3);
  EXPECT_EQ(value.rate, 0.5);
  EXPECT_EQ(value.sizes, (std::vector<std::int64_t>{1, 2}));
  EXPECT_TRUE(value.parts.empty());
}

TEST_F(Fields, SeveralItemsAreNotSplit) {
  std::vector<std::string> paths = {"a,b.txt", "c.txt"};
  FieldList other;
  other.add("text", value.parts, "");
  EXPECT_EQ(other.find("text")->set_items(paths), "");
  EXPECT_EQ(value.parts, paths);
}

TEST_F(Fields, DescribeThemselves) {
  EXPECT_EQ(list.find("count")->type_text(), "integer >= 1 and <= 1000");
  EXPECT_EQ(list.find("rate")->type_text(), "number > 0 and < 1");
  EXPECT_EQ(list.find("rate")->default_text(), "a half");
  EXPECT_EQ(list.find("on")->type_text(), "flag");
  EXPECT_EQ(list.find("sizes")->type_text(), "list of integers >= 0");
  EXPECT_EQ(list.find("parts")->type_text(), "list of core_attn|mlp");
  EXPECT_EQ(list.find("shade")->type_text(), "dark|light|bright");
}

TEST_F(Fields, AreFoundByEverySpelling) {
  EXPECT_EQ(list.find("n"), list.find("count"));
  EXPECT_EQ(list.find("absent"), nullptr);
  EXPECT_EQ(&list.find_negated("no-on")->field, list.find("on"));
  EXPECT_EQ(&list.find_negated("disable-it")->field, list.find("on"));
  EXPECT_EQ(&list.find_negated("disable-on")->field, list.find("on"));
  EXPECT_EQ(list.find_negated("no-count"), nullptr);
  EXPECT_EQ(list.find_negated(""), nullptr);
  EXPECT_EQ(list.find_shorthand("tiny")->section, "second");
  EXPECT_EQ(list.sections(), (std::vector<std::string>{"first", "second"}));
}

TEST_F(Fields, RefuseANameListedTwice) {
  expect_error(ErrorKind::kInternal, {"--n is listed twice"},
               [&] { list.add("n", value.count, ""); });
}

TEST(Problems, ListDivisors) {
  EXPECT_EQ(divisors_text(1), "1");
  EXPECT_EQ(divisors_text(7), "1 or 7");
  EXPECT_EQ(divisors_text(36), "1, 2, 3, 4, 6, 9, 12, 18 or 36");
  EXPECT_EQ(divisors_text(5040), "1, 2, 3, 4, 5, 6, 7, 8, 9, ... or 5040");
}

TEST(Problems, MentionWholeFlagsOnly) {
  EXPECT_TRUE(mentions_flag("--lr: is bad", "--lr"));
  EXPECT_TRUE(mentions_flag("above --lr 3; see --lr-decay-style", "--lr"));
  EXPECT_FALSE(mentions_flag("--lr-decay-style: is bad", "--lr"));
}

TEST(Problems, AreThrownTogether) {
  EXPECT_NO_THROW(throw_problems({}));
  std::vector<std::string> two = {"--a: x", "--b: y"};
  expect_error(ErrorKind::kConfig, {"2 problems:\n  --a: x\n  --b: y"},
               [&] { throw_problems(two); });
}

}  // namespace
}  // namespace bev
