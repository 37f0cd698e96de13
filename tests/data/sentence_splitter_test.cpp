#include "data/preprocess/sentence_splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace bev {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;

std::vector<std::string_view> sentences(std::string_view text) {
  return split_sentences(text, SentenceSpace::kDropped);
}

TEST(SplitSentences, CutsAtFullStopsThatEndSentences) {
  EXPECT_THAT(sentences("One. Two! Three? Four"), ElementsAre("One.", "Two!", "Three?", "Four"));
  EXPECT_THAT(sentences("He left.  She\tstayed.\nAll went."),
              ElementsAre("He left.", "She\tstayed.", "All went."));
  EXPECT_THAT(sentences("What?! No... Yes."), ElementsAre("What?!", "No...", "Yes."));
}

TEST(SplitSentences, KeepsSentencesWholeAtAbbreviationsInitialsAndNumbers) {
  for (const char* whole :
       {"Dr. Smith met Mrs. Jones vs. Mr. X at St. Paul.", "J. R. R. Tolkien wrote it.",
        "The U.S. Army came.", "It is 3.14 or 1,000.50 dollars.", "See Fig. 3 and No. 7 in vol. 2.",
        "On Jan. 5 it began, e.g. Here.", "Visit example.com for more.", "1. Introduction",
        "It was ... well ... odd.", "\"Really?\" he asked.", "Yahoo! is a name.",
        "(cf. Smith) is so."}) {
    EXPECT_THAT(sentences(whole), ElementsAre(whole));
  }
  EXPECT_THAT(sentences("Say no. Then go."), ElementsAre("Say no.", "Then go."));
  EXPECT_THAT(sentences("At 5 p.m. They left."), ElementsAre("At 5 p.m.", "They left."));
  EXPECT_THAT(sentences("In 1999. 2000 came."), ElementsAre("In 1999.", "2000 came."));
}

TEST(SplitSentences, LeavesQuotesAndBracketsWithTheirSentence) {
  EXPECT_THAT(sentences("He said \"Go.\" \"Why?\" (Nobody knew.) Then"),
              ElementsAre("He said \"Go.\"", "\"Why?\"", "(Nobody knew.)", "Then"));
  EXPECT_THAT(sentences("\xe2\x80\x9cYes.\xe2\x80\x9d \xe2\x80\x98No.\xe2\x80\x99 End"),
              ElementsAre("\xe2\x80\x9cYes.\xe2\x80\x9d", "\xe2\x80\x98No.\xe2\x80\x99", "End"));
}

TEST(SplitSentences, NeedsNoSpacesInChineseAndJapanese) {
  EXPECT_THAT(sentences("你好。再见！真的？「是。」好"),
              ElementsAre("你好。", "再见！", "真的？", "「是。」", "好"));
}

TEST(SplitSentences, EndsAtBlankLines) {
  EXPECT_THAT(sentences("A title\n\nThe text\nof it"), ElementsAre("A title", "The text\nof it"));
  EXPECT_THAT(sentences("a\r\n \r\nb"), ElementsAre("a", "b"));
}

TEST(SplitSentences, GivesNothingForNothing) {
  EXPECT_THAT(sentences(""), IsEmpty());
  EXPECT_THAT(sentences(" \n\t\xc2\xa0\n\n"), IsEmpty());
  EXPECT_THAT(sentences("."), ElementsAre("."));
  EXPECT_THAT(sentences("... . !"), ElementsAre("...", ".", "!"));
}

// With white space kept, the concatenation is the text; dropped, the sentences are the same without
// it.
TEST(SplitSentences, LosesNothingOfAnyText) {
  const std::vector<std::string> parts = {".", "!",  "?", "\n", " ", "a",  "Mr",
                                          "B", "\"", "(", ")",  "5", "。", "\xe2\x80\xa6",
                                          "é", "\t"};
  std::uint32_t state = 1;
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      state = state * 1664525 + 1013904223;
      text += parts[state >> 28];
    }
    std::string joined;
    for (std::string_view sentence : split_sentences(text, SentenceSpace::kKept)) {
      EXPECT_FALSE(sentence.empty());
      joined += sentence;
    }
    ASSERT_EQ(joined, text);
    std::string squeezed, expected;
    for (std::string_view sentence : sentences(text)) squeezed += sentence;
    auto without_space = [](const std::string& from) {
      std::string out;
      for (char c : from) {
        if (c != ' ' && c != '\n' && c != '\t') out.push_back(c);
      }
      return out;
    };
    ASSERT_EQ(without_space(squeezed), without_space(text));
  }
}

}  // namespace
}  // namespace bev
