#include "serve/reasoning.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace bev {
namespace {

// "R:reasoning|C:content" of a text that comes in these pieces.
std::string split_of(const char* parser, const std::vector<std::string>& pieces,
                     const char* prompt_end = "") {
  const ReasoningMarkers* markers = find_reasoning(parser);
  ReasoningSplitter splitter(*markers, prompt_end);
  std::string reasoning, content;
  auto add = [&](const std::vector<TextPiece>& texts) {
    for (const TextPiece& piece : texts) {
      (piece.part == TextPart::kReasoning ? reasoning : content) += piece.text;
    }
  };
  for (const std::string& piece : pieces) add(splitter.add(piece));
  add(splitter.finish());
  return concat("R:", reasoning, "|C:", content);
}

struct Case {
  const char *parser, *text, *prompt_end, *expected;
};

constexpr Case kCases[] = {
    {"think", "<think>\nso it is</think>\n\nyes", "", "R:so it is|C:yes"},
    {"think", "so it is</think>yes", "assistant\n<think>\n", "R:so it is|C:yes"},
    {"think", "never ends <", "<think>", "R:never ends <|C:"},
    {"think", "plain <b>", "", "R:|C:plain <b>"},
    {"think", "the tag <think> is quoted</think>", "", "R:|C:the tag <think> is quoted</think>"},
    {"think", "<think>a</think>b<think>c</think>", "", "R:a|C:b<think>c</think>"},
    {"think", "  <think></think>x", "", "R:|C:x"},
    {"think", "<think>a<think>b</think>c", "", "R:a<think>b|C:c"},
    {"mistral", "[THINK]a[/THINK]b", "", "R:a|C:b"},
    {"seed_oss", "<seed:think>a</seed:think>b", "", "R:a|C:b"},
    {"harmony",
     "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so"
     "<|return|>",
     "<|start|>assistant", "R:why|C:so"},
    {"harmony", "<|channel|>final<|message|>so", "", "R:|C:so"},
};

TEST(Reasoning, IsSplitWhereverTheTextIsCut) {
  for (const Case& row : kCases) {
    std::string text = row.text;
    EXPECT_EQ(split_of(row.parser, {text}, row.prompt_end), row.expected) << text;
    for (std::size_t i = 0; i <= text.size(); ++i) {
      EXPECT_EQ(split_of(row.parser, {text.substr(0, i), text.substr(i)}, row.prompt_end),
                row.expected)
          << text << " cut at " << i;
    }
    std::vector<std::string> bytes;
    for (char c : text) bytes.emplace_back(1, c);
    EXPECT_EQ(split_of(row.parser, bytes, row.prompt_end), row.expected) << text;
  }
}

// Nothing is held back longer than it could become a marker.
TEST(Reasoning, TextIsToldAtOnce) {
  ReasoningSplitter splitter(*find_reasoning("think"), "");
  EXPECT_TRUE(splitter.add("<thi").empty());
  EXPECT_TRUE(splitter.add("nk>").empty());
  EXPECT_TRUE(splitter.reasons());
  EXPECT_EQ(splitter.add("a b <").at(0).text, "a b ");
  EXPECT_EQ(splitter.add("c").at(0).text, "<c");
  EXPECT_EQ(splitter.add("</think>x<").at(0).text, "x<");
}

TEST(Reasoning, MarkersFollowFromTheTemplate) {
  EXPECT_EQ(reasoning_of_template("{{ '<think>' }}"), find_reasoning("think"));
  EXPECT_EQ(reasoning_of_template("x [/THINK] y"), find_reasoning("mistral"));
  EXPECT_EQ(reasoning_of_template("<|channel|>analysis"), find_reasoning("harmony"));
  EXPECT_EQ(reasoning_of_template("{{ messages }}"), nullptr);
  EXPECT_EQ(find_reasoning("none"), nullptr);
}

}  // namespace
}  // namespace bev
