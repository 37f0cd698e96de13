#include "data/preprocess/json_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace bev {
namespace {

using testing::ElementsAre;

const std::vector<std::string> kText = {"text"};

std::string text_of(std::string_view line) {
  std::vector<KeyTexts> texts = read_json_record(line, kText);
  EXPECT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0].size(), 1u);
  return texts[0][0];
}

TEST(JsonRecord, ReadsTheKeysInTheOrderAskedFor) {
  std::vector<std::string> keys = {"b", "a"};
  EXPECT_THAT(read_json_record(R"({"a":"1","x":{"b":"inner"},"b":["2","3"]})", keys),
              ElementsAre(ElementsAre("2", "3"), ElementsAre("1")));
  EXPECT_THAT(read_json_record(R"({"text":[]})", kText), ElementsAre(ElementsAre()));
}

TEST(JsonRecord, DecodesEveryEscape) {
  EXPECT_EQ(text_of(R"({"text":"\"\\\/\b\f\n\r\t\u0041\u00e9\u20AC\uD83d\uDe00"})"),
            "\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(text_of(R"({"text":"a\u0000b"})"), std::string("a\0b", 3));
  EXPECT_EQ(text_of("{\"text\":\"\x7f\xc2\x80\xf4\x8f\xbf\xbf\"}"), "\x7f\xc2\x80\xf4\x8f\xbf\xbf");
}

TEST(JsonRecord, ReadsWhatPythonReads) {
  EXPECT_EQ(text_of(R"({"text":"a","text":"b"})"), "b");
  EXPECT_EQ(text_of(R"({"text":1e999,"text":["x",null],"text":"b"})"), "b");
  EXPECT_EQ(text_of(" \t\r\n{ \"te\\u0078t\" :\t\"b\" } \r"), "b");
  for (const char* value :
       {"NaN", "-Infinity", "Infinity", "123456789012345678901234567890", "-0", "0.5e-7", "1E+2",
        "[]", "{}", "[[],{\"a\":[null,true,false]}]", "\"\\ud800\"", "{\"\\udfff\":0}"}) {
    EXPECT_EQ(text_of(concat("{\"x\":", value, ",\"text\":\"b\"}")), "b") << value;
  }
}

TEST(JsonRecord, SaysWhatIsWrongAndWhere) {
  struct Case {
    std::string line;
    const char* part;
  };
  const Case cases[] = {
      {"", "column 1: the line is not a JSON object"},
      {"[\"text\"]", "column 1: the line is not a JSON object"},
      {"{\"text\":\"a\"} x", "column 14: there is something behind"},
      {"{\"text\":\"a\"", "column 12: the line ends inside"},
      {"{\"text\":\"a", "column 11: the line ends inside"},
      {"{\"text\":\"a\\", "the line ends inside"},
      {"{\"text\":\"a\\u00", "the line ends inside"},
      {"{\"text\":\"a\\u00g0\"}", "four hexadecimal digits"},
      {"{\"text\":\"\\u@000\"}", "four hexadecimal digits"},
      {"{\"text\":\"a\\x\"}", "unknown escape"},
      {"{\"text\":\"a\nb\"}", "column 11: a text holds the control character '\\x0a'"},
      {std::string("{\"text\":\"a\0b\"}", 14), "control character '\\x00'"},
      {"{\"text\" \"a\"}", "':' is missing"},
      {"{\"text\":\"a\" \"b\":1}", "',' or '}' is missing"},
      {"{\"text\":\"a\",}", "column 13: a key in quotes is missing"},
      {"{text:\"a\"}", "a key in quotes is missing"},
      {"{\"text\":null}", "the value of 'text' is not a text"},
      {"{\"text\":{\"text\":\"a\"}}", "the value of 'text' is not a text"},
      {"{\"text\":[\"a\",1]}", "column 14: an entry in the list of 'text' is not a text"},
      {"{\"x\":tru,\"text\":\"a\"}", "column 6: this is no value"},
      {"{\"x\":01,\"text\":\"a\"}", "column 7: ',' or '}' is missing"},
      {"{\"x\":-,\"text\":\"a\"}", "this is no value"},
      {"{\"x\":[1,],\"text\":\"a\"}", "this is no value"},
      {"{\"title\":\"a\",\"id\":1}", "there is no key 'text'; the object has 'title', 'id'"},
      {"{}", "there is no key 'text'; the object has none"},
      {"{\"text\":\"a\\ud800b\"}", "column 11: the lone surrogate \\ud800"},
      {"{\"text\":\"\\udc00\\ud800\"}", "the lone surrogate \\udc00"},
      {"{\"text\":\"\\ud83d\\u0041\"}", "the lone surrogate \\ud83d"},
      {"{\"text\":\"a\xff\"}", "column 11: the line is not UTF-8"},
      {"{\"text\":\"a\xed\xa0\x80\"}", "column 11: the line is not UTF-8"},  // an encoded surrogate
      {"{\"text\":\"\xc0\x80\"}", "not UTF-8"},
      {"\xef\xbb\xbf{\"text\":\"a\"}", "the line is not a JSON object"},  // byte order mark
  };
  for (const Case& bad : cases) {
    expect_error(ErrorKind::kInput, {bad.part}, [&] { read_json_record(bad.line, kText); });
  }
}

TEST(JsonRecord, RefusesDeepNestingWithoutOverflow) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string line = "{\"x\":";
    for (int i = 0; i < 1'000'000; ++i) line += open;
    expect_error(ErrorKind::kInput, {"nest deeper than 256 levels"},
                 [&] { read_json_record(line, kText); });
  }
  std::string deep =
      concat("{\"text\":\"a\",\"x\":", std::string(256, '['), std::string(256, ']'), "}");
  EXPECT_EQ(text_of(deep), "a");
}

// Every truncation and every changed byte either parses or throws Error.
TEST(JsonRecord, SurvivesEveryCutAndChange) {
  std::string good = R"({"a":[1,{"b":"\u00e9"}],"text":"x\ud83d\ude00\n","c":-1.5e3,"d":true})";
  int errors = 0;
  auto attempt = [&](const std::string& line) {
    std::string copy(line);  // exact size, so that a sanitizer detects an overrun
    copy.shrink_to_fit();
    try {
      read_json_record(copy, kText);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      ++errors;
    }
  };
  for (std::size_t cut = 0; cut < good.size(); ++cut) attempt(good.substr(0, cut));
  EXPECT_EQ(errors, static_cast<int>(good.size()));
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = good;
      changed[i] = static_cast<char>(byte);
      attempt(changed);
    }
  }
}

}  // namespace
}  // namespace bev
