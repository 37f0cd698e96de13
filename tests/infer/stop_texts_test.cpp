#include "infer/stop_texts.h"

#include <gtest/gtest.h>

#include "infer/answer_text.h"
#include "tokenizer/byte_tokenizer.h"

namespace bev {
namespace {

using Texts = std::vector<std::string>;

TEST(StopTexts, TheEarliestIsFound) {
  EXPECT_EQ(find_stop_text("one two three", Texts{"three", "two"}), 4u);
  EXPECT_EQ(find_stop_text("one", Texts{"two"}), std::string::npos);
  EXPECT_EQ(find_stop_text("one", Texts{}), std::string::npos);
}

TEST(StopTexts, WhatMayBeginAStopTextIsHeldBack) {
  Texts stops = {"</end>", "\n\n"};
  EXPECT_EQ(settled_length("plain", stops), 5u);
  EXPECT_EQ(settled_length("text</e", stops), 4u);
  EXPECT_EQ(settled_length("text\n", stops), 4u);
  EXPECT_EQ(settled_length("text</end", stops), 4u);
  EXPECT_EQ(settled_length("text</ens", stops), 9u);
  EXPECT_EQ(settled_length("<<", stops), 1u);
  EXPECT_EQ(settled_length("text", Texts{}), 4u);
}

// The text of "said" byte by byte, and where a stop text ends it; before `least` bytes none does.
std::string answer(const std::string& said, const Texts& stops, std::size_t least = 0) {
  ByteTokenizer bytes;
  StopTexts engine(bytes, {}, stops);
  AnswerText text(bytes, {}, stops);
  std::string out;
  for (std::size_t i = 0; i < said.size(); ++i) {
    bool may_stop = i + 1 >= least;
    auto token = static_cast<std::int32_t>(static_cast<unsigned char>(said[i]));
    out += text.add(token, may_stop);
    if (auto found = engine.add(token, may_stop)) return out + text.finish(*found) + "|" + *found;
  }
  return out + text.finish("");
}

TEST(AnswerText, EndsBeforeTheStopText) {
  EXPECT_EQ(answer("one two three", {"two", "three"}), "one |two");
  EXPECT_EQ(answer("one two three", {"tw", "two"}), "one |tw");
  EXPECT_EQ(answer("one twx thr", {"two", "three"}), "one twx thr");
  EXPECT_EQ(answer("grüße", {"ü"}), "gr|ü");
  EXPECT_EQ(answer("aaab", {"aab"}), "a|aab");
  EXPECT_EQ(answer("nothing", {}), "nothing");
}

TEST(AnswerText, StopTextsAreOrdinaryBeforeTheLeastTokens) {
  EXPECT_EQ(answer("one two one two", {"two"}, 8), "one two one |two");
  EXPECT_EQ(answer("one two one", {"two"}, 8), "one two one");
  EXPECT_EQ(answer("two", {"two"}, 3), "|two");
}

}  // namespace
}  // namespace bev
