#include "base/json_check.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/expect_error.h"

namespace bev {
namespace {

void expect_rejected(std::string_view text, const std::string& part) {
  expect_error(ErrorKind::kInput, {"some.json", part}, [&] { check_json(text, "some.json", 4); });
}

TEST(CheckJson, AcceptsWhatIsFine) {
  check_json(R"({"a":[1,-2,3.5e-7,true,null,"é\u00e9"],"b":{"a":{"a":{}}}})", "some.json", 4);
  check_json(" [ ] \n", "some.json", 1);
  check_json("7", "some.json", 0);
}

TEST(CheckJson, RejectsWhatIsNotJson) {
  for (std::string_view text :
       {"",           " ",      "{",        "[1,]",          "{\"a\":1,}",     "{'a':1}",
        "[1] x",      "[1][2]", "[NaN]",    "[Infinity]",    "[-Infinity]",    "[01]",
        "[.5]",       "[1e]",   "// c\n[]", "[\"\\ud800\"]", "[\"\xff\xfe\"]", "[\"\xc0\x80\"]",
        "[\"a\nb\"]", "nul"}) {
    expect_rejected(text, "not valid JSON");
  }
  expect_rejected(std::string_view("[1]\0", 4), "not valid JSON: a zero byte at 3");
  expect_rejected(std::string_view("[\"\0\"]", 5), "not valid JSON");
  expect_rejected("[1e999]", "not valid JSON");
}

TEST(CheckJson, RejectsAKeyTwiceAtAnyLevel) {
  expect_rejected(R"({"a":1,"b":2,"a":3})", "'a' appears twice");
  expect_rejected(R"([{"x":{"q":1,"\u0071":2}}])", "'q' appears twice");
  check_json(R"([{"a":1},{"a":2},{"b":{"a":1},"a":1}])", "some.json", 4);
}

TEST(CheckJson, RejectsDeepNestingWithoutRecursion) {
  expect_rejected("[[[[[]]]]]", "deeper than 4");
  expect_rejected(std::string(3'000'000, '['), "deeper than 4");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  expect_rejected(objects, "deeper than 4");
  // Nesting within the limit: the error is the missing end of the text.
  EXPECT_THROW(check_json(std::string(100'000, '['), "some.json", 1'000'000), Error);
}

TEST(CheckJson, KeepsMessagesShortAndPrintable) {
  try {
    check_json("[\"" + std::string(1'000'000, 'x') + "\x1b[31m\xff", "some.json", 4);
    FAIL();
  } catch (const Error& error) {
    std::string_view text = error.what();
    EXPECT_LT(text.size(), 400u);
    for (char c : text) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  }
}

TEST(PythonNumbers, BecomeStringsAndComeBack) {
  const std::string text =
      R"({"a": Infinity, "b": [-Infinity, NaN,1], "s": "Infinity \" NaN", "Infinity": "-Infinity"})";
  const std::string marked = mark_python_numbers(text);
  check_json(marked, "x", 4);
  EXPECT_EQ(marked, R"({"a": "\u0001Infinity", "b": ["\u0001-Infinity", "\u0001NaN",1], )"
                    R"("s": "Infinity \" NaN", "Infinity": "-Infinity"})");
  EXPECT_EQ(unmark_python_numbers(marked), text);
  EXPECT_EQ(unmark_python_numbers(R"(["\u0001NaNs", "\u0001", "\u0001Infinity)"),
            R"(["\u0001NaNs", "\u0001", "\u0001Infinity)");
  EXPECT_EQ(mark_python_numbers(R"("open \)"), R"("open \)");
}

TEST(Quote, EscapesAndCuts) {
  EXPECT_EQ(quote("a.b"), "'a.b'");
  EXPECT_EQ(quote("\x1b\n\xc3\xa9"), "'\\x1b\\x0a\\xc3\\xa9'");
  EXPECT_EQ(quote("abcdef", 3), "'abc...'");
}

}  // namespace
}  // namespace bev
