#include "infer/stop_texts.h"

#include <gtest/gtest.h>

#include "tokenizer/tokenizer.h"

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

}  // namespace
}  // namespace bev
