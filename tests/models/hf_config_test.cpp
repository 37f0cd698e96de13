#include "models/families/hf_config.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace bev {
namespace {

TEST(HfConfig, ReadsTypedValues) {
  HfConfig hf = HfConfig::parse(
      R"({"n": 3, "x": 2, "y": 1e-05, "b": true, "s": "silu", "l": [1, 2.5], "t": ["a", "b"],
          "o": {"factor": 4}, "nothing": null, "zero": 0})");
  EXPECT_EQ(hf.positive_integer("n"), 3);
  EXPECT_EQ(hf.positive_integer("missing", 7), 7);
  EXPECT_EQ(hf.positive_integer("nothing", 8), 8);
  EXPECT_EQ(hf.count("zero", 5), 0);
  EXPECT_EQ(hf.positive_number("x"), 2.0);
  EXPECT_EQ(hf.positive_number("y", 1), 1e-5);
  EXPECT_EQ(hf.magnitude("zero", 1), 0);
  EXPECT_TRUE(hf.boolean("b", false));
  EXPECT_EQ(hf.text("s"), "silu");
  EXPECT_EQ(hf.positive_numbers("l"), (std::vector<double>{1, 2.5}));
  EXPECT_EQ(hf.texts("t"), (std::vector<std::string>{"a", "b"}));
  ASSERT_TRUE(hf.object("o").has_value());
  EXPECT_EQ(hf.object("o")->positive_integer("factor"), 4);
  EXPECT_FALSE(hf.object("missing").has_value());
  EXPECT_FALSE(hf.has("nothing"));
  EXPECT_TRUE(hf.listed("nothing"));
  EXPECT_FALSE(hf.listed("missing"));
}

TEST(HfConfig, TruthyIsPythons) {
  HfConfig hf = HfConfig::parse(R"({"a": null, "b": false, "c": 0, "d": "", "e": [], "f": {},
                                    "g": true, "h": 0.5, "i": "x", "j": [0], "k": {"l": null}})");
  for (const char* key : {"a", "b", "c", "d", "e", "f", "missing"}) {
    EXPECT_FALSE(hf.truthy(key)) << key;
  }
  for (const char* key : {"g", "h", "i", "j", "k"}) EXPECT_TRUE(hf.truthy(key)) << key;
}

void expect_value_error(const std::string& value, const std::string& wanted,
                        void (*read)(const HfConfig&)) {
  HfConfig hf = HfConfig::parse("{\"key\": " + value + "}", "dir/config.json");
  expect_error(ErrorKind::kInput, {"dir/config.json: key must be " + wanted + ", got " + value},
               [&] { read(hf); });
}

TEST(HfConfig, WrongTypesAndRangesNameFileKeyAndValue) {
  for (const char* value :
       {"\"x\"", "0", "-1", "2.0", "true", "[1]", "1e30", "268435457", "18446744073709551615"}) {
    HfConfig hf = HfConfig::parse(std::string("{\"key\": ") + value + "}");
    expect_error(ErrorKind::kInput, {"config.json: key must be a positive integer, got "},
                 [&] { hf.positive_integer("key"); });
  }
  expect_value_error("\"x\"", "a positive integer",
                     [](const HfConfig& hf) { hf.positive_integer("key", 1); });
  expect_value_error("-1", "an integer >= 0", [](const HfConfig& hf) { hf.count("key", 1); });
  expect_value_error("0", "a positive number",
                     [](const HfConfig& hf) { hf.positive_number("key", 1); });
  expect_value_error("-0.5", "a number >= 0", [](const HfConfig& hf) { hf.magnitude("key", 1); });
  expect_value_error("1", "true or false", [](const HfConfig& hf) { hf.boolean("key", true); });
  expect_value_error("1", "text", [](const HfConfig& hf) { hf.text("key"); });
  expect_value_error("[1,0]", "a list of positive numbers",
                     [](const HfConfig& hf) { hf.positive_numbers("key"); });
  expect_value_error("[\"a\",1]", "a list of texts", [](const HfConfig& hf) { hf.texts("key"); });
  expect_value_error("3", "an object", [](const HfConfig& hf) { hf.object("key"); });
}

TEST(HfConfig, MissingKeysSayWhatIsNeeded) {
  HfConfig hf = HfConfig::parse("{}");
  expect_error(ErrorKind::kInput, {"config.json: key is missing; it must be a positive integer"},
               [&] { hf.positive_integer("key"); });
  expect_error(ErrorKind::kInput, {"config.json: key is missing; it must be text"},
               [&] { hf.text("key"); });
}

TEST(HfConfig, NestedKeysShowTheirPath) {
  HfConfig hf = HfConfig::parse(R"({"rope_scaling": {"factor": "big"}})");
  expect_error(ErrorKind::kInput,
               {"config.json: rope_scaling.factor must be a positive number, got \"big\""},
               [&] { hf.object("rope_scaling")->positive_number("factor"); });
}

TEST(HfConfig, LongValuesAreCut) {
  HfConfig hf = HfConfig::parse("{\"key\": [" + std::string(500, ' ') + "\"" +
                                std::string(500, 'x') + "\"]}");
  try {
    hf.positive_integer("key");
    FAIL();
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 160u);
  }
}

TEST(HfConfig, BrokenFilesAreErrors) {
  for (const char* text : {"", "{", "{\"a\": nan}", "{\"a\": Infinit}", "{\"a\": 1e999}",
                           "{\"a\": 1, \"a\": 2}", "{\"a\": 1} x", "\xff\xfe", "{'a': 1}"}) {
    expect_error(ErrorKind::kInput, {"some/config.json"},
                 [&] { HfConfig::parse(text, "some/config.json"); });
  }
  expect_error(ErrorKind::kInput, {"config.json: must be a JSON object, got [1]"},
               [] { HfConfig::parse("[1]"); });
  expect_error(ErrorKind::kInput, {"nested deeper"},
               [] { HfConfig::parse("{\"a\":" + std::string(100, '[')); });
}

TEST(HfConfig, DumpIsSortedAndReadsBack) {
  HfConfig inner;
  inner.set("rope_type", "default");
  HfConfig hf;
  hf.set("vocab_size", std::int64_t{97});
  hf.set("rms_norm_eps", 1e-5);
  hf.set("rope_theta", 10000.0);
  hf.set("name", "x");
  hf.set("tie", false);
  hf.set("list", std::vector<std::int64_t>{1, 2});
  hf.set("texts", std::vector<std::string>{"a"});
  hf.set("rope", inner);
  hf.set_null("pad_token_id");
  EXPECT_EQ(hf.dump(), R"({
  "list": [
    1,
    2
  ],
  "name": "x",
  "pad_token_id": null,
  "rms_norm_eps": 1e-05,
  "rope": {
    "rope_type": "default"
  },
  "rope_theta": 10000.0,
  "texts": [
    "a"
  ],
  "tie": false,
  "vocab_size": 97
}
)");
  EXPECT_EQ(HfConfig::parse(hf.dump()).dump(), hf.dump());
}

TEST(HfConfig, CopiesAreIndependent) {
  HfConfig a;
  a.set("x", std::int64_t{1});
  HfConfig b = a;
  b.set("x", std::int64_t{2});
  EXPECT_EQ(a.positive_integer("x"), 1);
  a = b;
  EXPECT_EQ(a.positive_integer("x"), 2);
  EXPECT_EQ(b.positive_integer("x"), 2);
}

}  // namespace
}  // namespace bev
