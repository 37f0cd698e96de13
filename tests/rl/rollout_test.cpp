// Rollouts as values: shaping, advantages, metrics, files, and the order of prompts.
#include "rl/rollout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "rl/prompts.h"
#include "rl/rollout_bank.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/byte_tokenizer.h"

namespace bev::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::vector<SampledRow> rows_of(const Numbers& scores, std::int64_t group_size) {
  std::vector<SampledRow> rows(scores.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].group = static_cast<std::int64_t>(i) / group_size;
    rows[i].index = static_cast<std::int64_t>(i) % group_size;
    rows[i].prompt = {1, 2};
    rows[i].completion = TokenRow(i % 3 + 1, 7);
    rows[i].sampling_logps =
        Numbers(rows[i].completion.size(), -0.1 - 0.01 * static_cast<double>(i));
    rows[i].old_logps = rows[i].sampling_logps;
    rows[i].score = scores[i];
    rows[i].finish_reason = i % 4 == 3 ? "length" : "stop";
  }
  return rows;
}

Numbers advantages(const RlConfig& config, const char* objective, std::vector<SampledRow> rows) {
  set_advantages(config, find_objective(objective), 8, rows);
  Numbers out;
  for (const SampledRow& row : rows) out.push_back(row.advantage);
  return out;
}

double value_of(const std::vector<Metric>& metrics, const std::string& name) {
  for (const Metric& metric : metrics) {
    if (metric.name == name) return metric.value;
  }
  ADD_FAILURE() << "no metric " << name;
  return kNone;
}

TEST(Rollouts, LongCompletionsLoseLinearly) {
  EXPECT_EQ(overlong_reward(90, 100, 20, 1), -0.5);
  EXPECT_EQ(overlong_reward(80, 100, 20, 1), 0);
  EXPECT_EQ(overlong_reward(100, 100, 20, 0.5), -0.5);
  EXPECT_EQ(overlong_reward(100, 100, 0, 1), 0);
  RlConfig config;
  config.overlong_buffer = 4;
  std::vector<SampledRow> rows = rows_of({1, 1}, 2);
  rows[1].completion = TokenRow(6, 7);
  set_advantages(config, find_objective("dr_grpo"), 8, rows);
  EXPECT_EQ(rows[0].reward, 1);
  EXPECT_EQ(rows[1].reward, 0.5);
  EXPECT_EQ(rows[1].score, 1);
  EXPECT_EQ(rows[0].advantage, 0.25);
}

TEST(Rollouts, AdvantagesAreThoseOfTheObjective) {
  const std::vector<SampledRow> rows = rows_of({1, 0, 0, 1, 1, 0, 0.5, 0}, 8);
  EXPECT_NEAR(advantages({}, "grpo", rows)[0], 1.1349521583108195, 1e-14);
  EXPECT_NEAR(advantages({}, "grpo", rows)[1], -0.8827405675750818, 1e-14);
  EXPECT_NEAR(advantages({}, "rloo", rows)[0], 0.6428571428571428, 1e-14);
  EXPECT_NEAR(advantages({}, "dr_grpo", rows)[1], -0.4375, 1e-14);
}

// The KL estimate of each token is taken from its reward; values come from a critic.
TEST(Rollouts, ACriticGivesEveryTokenItsAdvantage) {
  RlConfig config;
  config.gamma = "0.9";
  config.lambda = "0.8";
  config.whiten_advantages = "false";
  PreferenceConfig preferences;
  preferences.rollouts = true;
  preferences.objective = "ppo";
  preferences.beta = "0.1";
  ObjectiveRule rule = config.rule(preferences);
  EXPECT_EQ(rule.policy.kl, KlEstimate::kK1);
  std::vector<SampledRow> rows = rows_of({1, kNone}, 2);
  for (SampledRow& row : rows) {
    row.completion = {7, 8, 9};
    row.old_logps = {-0.5, -1, -0.4};
    row.ref_logps = {-0.6, -1.2, -0.3};
    row.values = {0.3, -0.2, 0.5};
  }
  set_advantages(config, rule, 8, rows);
  const double kAdvantages[] = {0.227984, 0.9972, 0.51}, kReturns[] = {0.527984, 0.7972, 1.01};
  for (std::size_t t = 0; t < 3; ++t) {
    EXPECT_NEAR(rows[0].token_advantages[t], kAdvantages[t], 1e-15);
    EXPECT_NEAR(rows[0].returns[t], kReturns[t], 1e-15);
    EXPECT_EQ(rows[1].token_advantages[t], 0);
  }
  EXPECT_NEAR(rows[0].advantage, (0.227984 + 0.9972 + 0.51) / 3, 1e-15);
  EXPECT_EQ(rows[0].reward, 1);
  RolloutPhase phase{.rows = rows};
  EXPECT_NEAR(value_of(phase_metrics(phase), "val/mean"), 0.2, 1e-15);
  StoredPhase stored;
  TempFolder folder;
  folder.write("phase", phase_text(phase, ""));
  stored = read_phase(folder.path("phase"));
  EXPECT_EQ(stored.phase.rows[0].values, rows[0].values);
  EXPECT_EQ(stored.phase.rows[0].returns, rows[0].returns);
  EXPECT_EQ(stored.phase.rows[0].token_advantages, rows[0].token_advantages);
  // Without the KL in it the reward is at the end alone.
  config.kl_in_reward = "false";
  rule = config.rule(preferences);
  set_advantages(config, rule, 8, rows);
  EXPECT_NEAR(rows[0].returns[2], 1, 1e-15);
  // The whole step has mean 0 and variance 1; rows that teach nothing stay out.
  config.whiten_advantages = "";
  set_advantages(config, config.rule(preferences), 8, rows);
  EXPECT_NEAR(rows[0].advantage, 0, 1e-15);
  EXPECT_EQ(rows[1].advantage, 0);
}

TEST(Rollouts, RowsWithoutRewardTeachNothing) {
  std::vector<SampledRow> rows = rows_of({1, kNone, 0}, 3);
  set_advantages({}, find_objective("dr_grpo"), 8, rows);
  EXPECT_EQ(rows[0].advantage, 0.5);
  EXPECT_EQ(rows[1].advantage, 0);
  EXPECT_EQ(sample_of(rows[1], false).weights, std::vector<float>(4, 0));
  EXPECT_THAT(sample_of(rows[0], false).weights, ElementsAre(0, 1, 0));
  rows[0].finish_reason = "length";
  EXPECT_THAT(sample_of(rows[0], true).weights, ElementsAre(0, 0, 0));
}

TEST(Rollouts, GroupsOfOneRewardAreKnown) {
  EXPECT_TRUE(all_equal(rows_of({1, 1, 1}, 3)));
  EXPECT_TRUE(all_equal(rows_of({kNone, kNone}, 2)));
  EXPECT_TRUE(all_equal(rows_of({kNone, 0.5}, 2)));
  EXPECT_FALSE(all_equal(rows_of({1, 1, 0.5}, 3)));
}

TEST(Rollouts, MetricsHaveTrlsNames) {
  RolloutPhase phase{.rows = rows_of({1, 0, 1, 1}, 2)};
  set_advantages({}, find_objective("grpo"), 8, phase.rows);
  phase.rows[1].old_logps[0] -= 0.25;
  for (SampledRow& row : phase.rows) row.rewards = {{"numeric", row.score}};
  std::vector<Metric> metrics = phase_metrics(phase);
  EXPECT_EQ(value_of(metrics, "reward"), 0.75);
  EXPECT_NEAR(value_of(metrics, "reward_std"), std::sqrt(0.5) / 2, 1e-15);
  EXPECT_EQ(value_of(metrics, "frac_reward_zero_std"), 0.5);
  EXPECT_EQ(value_of(metrics, "completions/mean_length"), 1.75);
  EXPECT_EQ(value_of(metrics, "completions/max_length"), 3);
  EXPECT_EQ(value_of(metrics, "completions/clipped_ratio"), 0.25);
  EXPECT_NEAR(value_of(metrics, "rollout/logprob_diff_max"), 0.25, 1e-15);
  EXPECT_NEAR(value_of(metrics, "rollout/logprob_diff_mean"), 0.25 / 7, 1e-15);
  EXPECT_NEAR(value_of(metrics, "rollout/token_mult_prob_error"), (6 + std::exp(0.25)) / 7, 1e-15);
  EXPECT_EQ(value_of(metrics, "rewards/numeric/mean"), 0.75);
  EXPECT_EQ(value_of(metrics, "rewards/numeric/std"), 0.5);
}

TEST(RolloutBank, KeepsEveryBit) {
  TempFolder folder;
  RolloutPhase phase{.number = 3,
                     .step = 4,
                     .next_prompt = 11,
                     .groups_tried = 7,
                     .rows = rows_of({1.0 / 3, kNone}, 2)};
  phase.rows[0].ref_logps = {std::nextafter(-0.1, 0)};
  phase.rows[0].text = "a \"b\"\n";
  phase.rows[0].rewards = {{"x", 0.1}};
  phase.rows[1].problem = "no answer";
  RolloutBank bank(folder.path("bank"), 1 << 20, "lr=1");
  EXPECT_FALSE(bank.find(3, true));
  bank.save(phase);
  std::optional<RolloutPhase> found = bank.find(3, false);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->next_prompt, 11);
  EXPECT_EQ(found->groups_tried, 7);
  EXPECT_EQ(found->step, 4);
  ASSERT_EQ(found->rows.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(row_json(*found, found->rows[i]), row_json(phase, phase.rows[i]));
    EXPECT_EQ(found->rows[i].sampling_logps, phase.rows[i].sampling_logps);
  }
  EXPECT_EQ(found->rows[0].ref_logps, phase.rows[0].ref_logps);
  EXPECT_TRUE(std::isnan(found->rows[1].score));
  // Rollouts under other settings serve only updates that have begun.
  RolloutBank other(folder.path("bank"), 1 << 20, "lr=2");
  EXPECT_FALSE(other.find(3, false));
  EXPECT_TRUE(other.find(3, true));
  folder.write("bank/phase_00000003.jsonl", "{\"phase\": 3");
  EXPECT_FALSE(bank.find(3, true));
}

TEST(RolloutBank, TheOldestFilesGo) {
  TempFolder folder;
  RolloutBank bank(folder.path(""), 2000, "");
  for (std::int64_t number = 0; number < 4; ++number) {
    bank.save({.number = number, .rows = rows_of({1, 0}, 2)});
  }
  EXPECT_FALSE(bank.find(0, true));
  EXPECT_TRUE(bank.find(3, true));
}

std::vector<PromptRow> prompts_of(const std::vector<std::string>& texts) {
  std::vector<PromptRow> rows;
  for (const std::string& text : texts) {
    rows.push_back({.where = concat("F:", rows.size() + 1), .prompt = text});
  }
  return rows;
}

TEST(Prompts, EveryEpochHasEachOnceInAnotherOrder) {
  ByteTokenizer tokenizer;
  PromptSet set(prompts_of({"a", "b", "c", "d", "e", "f", "too long"}), tokenizer, nullptr, 2, 5);
  ASSERT_EQ(set.size(), 6);
  std::vector<std::string> epochs;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    std::string order;
    for (std::int64_t i = 0; i < 6; ++i) order += set.at(6 * epoch + i).text;
    epochs.push_back(order);
    EXPECT_EQ(std::set<char>(order.begin(), order.end()).size(), 6U) << order;
  }
  EXPECT_NE(epochs[0], epochs[1]);
  expect_error(ErrorKind::kInput, {"2 prompts have more than 1 tokens", "F:1"}, [&] {
    PromptSet(prompts_of({"ab", "cd"}), tokenizer, nullptr, 1, 5);
  });
  std::vector<PromptRow> messages = prompts_of({"[]"});
  messages[0].messages = true;
  expect_error(ErrorKind::kInput, {"F:1: the prompt is a list of messages"},
               [&] { PromptSet(messages, tokenizer, nullptr, 9, 5); });
}

TEST(RlConfig, NamesWhatDoesNotFit) {
  PreferenceConfig preferences;
  preferences.rollouts = true;
  preferences.objective = "grpo";
  preferences.max_completion_length = 16;
  RlConfig config;
  EXPECT_THAT(config.problems(preferences, 32), ElementsAre());
  EXPECT_EQ(config.steps_per_phase(32), 2);
  EXPECT_THAT(config.problems(preferences, 24), ElementsAre(HasSubstr("does not divide the 64")));
  config.num_generations = 1;
  EXPECT_THAT(config.problems(preferences, 8), ElementsAre(HasSubstr("compares the completions")));
  preferences.objective = "reinforce++";
  EXPECT_THAT(config.problems(preferences, 8), ElementsAre());
  config.kl = "k4";
  config.overlong_buffer = 17;
  EXPECT_THAT(config.problems(preferences, 8),
              ElementsAre(HasSubstr("--overlong-buffer: 17 is more"), HasSubstr("--kl")));
  config.gamma = "0.9";
  EXPECT_THAT(config.problems(preferences, 8),
              Contains(HasSubstr("--gamma: reinforce++ has no critic")));
  config.gamma = "";
  config.kl = "k1";
  EXPECT_EQ(config.rule(preferences).policy.kl, KlEstimate::kK1);
  EXPECT_EQ(config.rule(preferences).policy.max_completion_length, 16);
}

}  // namespace
}  // namespace bev::test
