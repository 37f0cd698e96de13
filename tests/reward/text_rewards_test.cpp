// Rewards that are functions of text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "reward/answers.h"
#include "reward/code_reward.h"
#include "reward/json_schema.h"
#include "reward/reward.h"
#include "reward/row_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev::test {
namespace {

double reward_of(const std::string& spec, const std::string& completion,
                 const std::string& label = "") {
  std::vector<RewardRow> rows(1);
  rows[0].completion = completion;
  rows[0].label = label;
  rows[0].has_label = true;
  return make_reward(spec, {})->score(rows)[0].reward;
}

TEST(Answers, NumbersAreReadAsPeopleWriteThem) {
  EXPECT_EQ(read_number(" $1,234.50 "), 1234.5);
  EXPECT_EQ(read_number("-3/4"), -0.75);
  EXPECT_EQ(read_number("12%"), 0.12);
  EXPECT_EQ(read_number("1/0"), std::nullopt);
  EXPECT_EQ(read_number("twelve"), std::nullopt);
  EXPECT_EQ(last_number("12 + 30 = 42."), 42);
  EXPECT_EQ(last_number("so x = -7 apples"), -7);
  EXPECT_EQ(last_number("7-3"), 3);
  EXPECT_EQ(last_number("no digits"), std::nullopt);
}

TEST(Answers, AreFoundWhereTheyAreMarked) {
  EXPECT_EQ(last_boxed("\\boxed{1} then \\boxed{\\frac{1}{2}}."), "\\frac{1}{2}");
  EXPECT_EQ(last_boxed("\\boxed{open"), std::nullopt);
  EXPECT_EQ(marked_answer("a\n#### 1,200\n"), "1200");
  EXPECT_EQ(answer_line("Answer: 1\nANSWER : 2 x"), "2 x");
  EXPECT_EQ(last_choice("A or B? I say (B)."), "B");
  EXPECT_EQ(last_choice("ABC"), std::nullopt);
}

TEST(Answers, OneValueHasManySpellings) {
  EXPECT_TRUE(same_answer("\\dfrac{1}{2}", "\\frac{1}{2}"));
  EXPECT_TRUE(same_answer("$0.5$", ".5"));
  EXPECT_TRUE(same_answer("x = 12\\text{ cm}", "12cm"));
  EXPECT_TRUE(same_answer("1,000", "1000.0"));
  EXPECT_FALSE(same_answer("12", "13"));
  EXPECT_FALSE(same_answer("", ""));
}

TEST(TextRewards, CompareWithTheLabel) {
  EXPECT_EQ(reward_of("exact", " 42\n", "42"), 1);
  EXPECT_EQ(reward_of("exact", "42.", "42"), 0);
  EXPECT_EQ(reward_of("numeric", "It is 42.0", "42"), 1);
  EXPECT_EQ(reward_of("numeric:0.1", "41", "42"), 1);
  EXPECT_EQ(reward_of("numeric", "41", "42"), 0);
  EXPECT_EQ(reward_of("gsm8k", "so\n#### 1,200", "work\n#### 1200"), 1);
  EXPECT_EQ(reward_of("gsm8k", "1200", "#### 1200"), 0);
  EXPECT_EQ(reward_of("boxed", "\\boxed{\\tfrac12}", "\\frac12"), 1);
  EXPECT_EQ(reward_of("math", "Answer: $7$", "7"), 1);
  EXPECT_EQ(reward_of("choice", "The answer is C.", "C"), 1);
  EXPECT_EQ(reward_of("regex:ANSWER (\\w+)", "ANSWER no ANSWER yes", "yes"), 1);
  EXPECT_EQ(reward_of("regex:ANSWER (\\w+)", "ANSWER yes ANSWER no", "yes"), 0);
}

TEST(TextRewards, LookAtTheForm) {
  EXPECT_EQ(reward_of("regex:^[0-9]+$", "123"), 1);
  EXPECT_EQ(reward_of("regex:^[0-9]+$", "12a"), 0);
  EXPECT_EQ(reward_of("format:think", "<think>a\nb</think>c"), 1);
  EXPECT_EQ(reward_of("format:think", "<think>a<think>b</think>c"), 0);
  EXPECT_EQ(reward_of("format:think", "c <think>a</think>"), 0);
  EXPECT_EQ(reward_of("length:2-3", "\xc3\xa4\xc3\xb6"), 1);
  EXPECT_EQ(reward_of("length:2-3", "four"), 0);
}

TEST(TextRewards, ARegularExpressionThatNeverEndsGivesNoReward) {
  std::vector<RewardRow> rows(1);
  rows[0].completion = std::string(40, 'a') + "b";
  RowReward value = make_reward("regex:^((a+)+)+$", {})->score(rows)[0];
  EXPECT_TRUE(std::isnan(value.reward) || value.reward == 0);
  EXPECT_EQ(std::isnan(value.reward), !value.problem.empty());
}

TEST(TextRewards, AddUpByWeightsAndLeaveOutWhatHasNone) {
  std::vector<std::unique_ptr<Reward>> rewards;
  rewards.push_back(make_reward("numeric", {}));
  rewards.push_back(make_reward("length:1-9", {}));
  std::vector<RewardRow> rows(2);
  for (RewardRow& row : rows) row.completion = "7", row.has_label = true;
  rows[0].label = "7";
  rows[1].label = "no number";
  const std::vector<double> weights = {1, 0.25};
  std::vector<RowReward> values = weighted_rewards(rewards, weights, rows);
  EXPECT_EQ(values[0].reward, 1.25);
  EXPECT_EQ(values[1].reward, 0.25);
  EXPECT_THAT(values[1].problem, testing::HasSubstr("no number"));
  rows[1].has_label = false;
  rows[1].where = "F.jsonl:2";
  expect_error(ErrorKind::kInput, {"F.jsonl:2: has no label"},
               [&] { check_labels(rewards, rows); });
}

TEST(TextRewards, SpecsThatAreNoneAreNamed) {
  for (const char* spec :
       {"exakt", "regex", "length:5", "numeric:x", "regex:(", "json:none.json"}) {
    EXPECT_THROW(make_reward(spec, {}), Error) << spec;
  }
}

TEST(JsonSchema, AcceptsValuesOfItsForm) {
  TempFolder folder;
  JsonSchema schema(folder.write("s.json", R"({"type": "object", "required": ["name", "age"],
      "properties": {"name": {"type": "string", "minLength": 1, "pattern": "^[a-z]+$"},
                     "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150},
                     "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
      "additionalProperties": false})"));
  EXPECT_TRUE(schema.accepts(R"({"name": "ann", "age": 3, "tags": ["a", "b"]})"));
  EXPECT_TRUE(schema.accepts("```json\n{\"name\": \"ann\", \"age\": 3.0}\n```"));
  EXPECT_FALSE(schema.accepts(R"({"name": "ann"})"));
  EXPECT_FALSE(schema.accepts(R"({"name": "Ann", "age": 3})"));
  EXPECT_FALSE(schema.accepts(R"({"name": "ann", "age": 150})"));
  EXPECT_FALSE(schema.accepts(R"({"name": "ann", "age": 3, "x": 1})"));
  EXPECT_FALSE(schema.accepts(R"({"name": "ann", "age": 3, "tags": ["c"]})"));
  EXPECT_FALSE(schema.accepts(R"({"name": "ann", "age": 3} trailing)"));
  EXPECT_FALSE(schema.accepts(std::string(100000, '[')));
  JsonSchema choice(folder.write("c.json", R"({"oneOf": [{"type": "null"}, {"const": 1},
      {"not": {"type": ["number", "null", "boolean"]}}]})"));
  EXPECT_TRUE(choice.accepts("null"));
  EXPECT_TRUE(choice.accepts("1"));
  EXPECT_TRUE(choice.accepts("\"text\""));
  EXPECT_FALSE(choice.accepts("2"));
  EXPECT_THROW(JsonSchema(folder.write("u.json", R"({"$ref": "x"})")), Error);
  EXPECT_THROW(JsonSchema(folder.write("w.json", R"({"properties": {"a": 3}})")), Error);
}

TEST(RowFile, ReadsPromptsLabelsAndCompletions) {
  TempFolder folder;
  std::string file = folder.write("f.jsonl", R"({"id": 7, "prompt": "1+1=", "answer": 2}

{"prompt": [{"role": "user", "content": "hi"}], "label": "x",
)");
  EXPECT_THROW(read_prompt_rows({file}, ""), Error);
  file = folder.write("f.jsonl", R"({"id": 7, "prompt": "1+1=", "answer": 2}

{"prompt": [{"role": "user"}], "completion": [{"role": "assistant", "content": "hi"}]})");
  std::vector<PromptRow> rows = read_prompt_rows({file}, "");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].id, "7");
  EXPECT_EQ(rows[0].label, "2");
  EXPECT_TRUE(rows[1].messages);
  EXPECT_FALSE(rows[1].has_label);
  EXPECT_EQ(rows[1].completion, "hi");
  EXPECT_EQ(rows[1].where, file + ":3");
  expect_error(ErrorKind::kInput, {"f.jsonl:1: has no 'solution'"},
               [&] { read_prompt_rows({file}, "solution"); });
}

TEST(CodeOf, IsTheLastBlockBetweenFences) {
  EXPECT_EQ(code_of("x = 1"), "x = 1");
  EXPECT_EQ(code_of("a\n```python\nx = 1\n```\nb\n```\ny = 2\n```\n"), "y = 2\n");
}

}  // namespace
}  // namespace bev::test
