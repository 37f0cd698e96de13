// A reward model trains to the result of one rank under every layout, whatever its batches are cut
// into.
#include <gtest/gtest.h>

#include "data/preference/preference_sample.h"
#include "posttrain/completion_objective.h"
#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

constexpr std::int64_t kVocabulary = 61;
constexpr std::int32_t kPad = 3;

TokenRow tokens(std::uint64_t seed, std::int64_t count) {
  return random_samples(kVocabulary, 1, count, seed)[0].tokens;
}

// Completions of one token and more, some with pads at the end, which are not scored.
StepSamples pairs(std::uint64_t seed) {
  StepSamples samples;
  for (std::uint64_t i = 0; i < 5; ++i) {
    auto length = static_cast<std::int64_t>(1 + (seed + 3 * i) % 7);
    PreferencePair pair{.prompt = tokens(seed + i, 1 + length % 3),
                        .chosen = tokens(seed + 10 * i, length),
                        .rejected = tokens(seed + 100 * i, 8 - length),
                        .ref_chosen_logp = {},
                        .ref_rejected_logp = {},
                        .margin = 0.1 * static_cast<double>(i)};
    if (i % 2 == 1) pair.rejected.back() = kPad;
    if (i == 4) pair.chosen.push_back(kPad);
    samples.push_back(pair_sample(pair, false));
  }
  return samples;
}

ObjectiveRule rule() {
  ObjectiveRule rule = find_objective("reward");
  rule.reward.center_rewards_coefficient = 0.05;
  return rule;
}

void expect_one_ranks_answer(const ModelConfig& model, const std::string& layouts) {
  CompletionObjective objective(rule(), {});
  TinyRun run;
  run.model = model;
  run.model.vocab_size = kVocabulary;
  run.model.num_labels = 1;
  run.model.pad_token = kPad;
  run.objective = &objective;
  run.samples = pairs;
  run.preparation = [](RankModel& policy) -> std::unique_ptr<BatchPreparation> {
    return std::make_unique<CompletionPreparation>(rule(), policy, nullptr);
  };
  run.micro_batch_size = 5;
  LayoutAnswer expected = run_tiny(run);
  EXPECT_NE(expected.losses[0], expected.losses[2]);
  for (std::int64_t size : {1, 2}) {
    run.micro_batch_size = size;
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << "cut by " << size;
  }
  for (const ParallelConfig& layout : parse_layouts(layouts, {})) {
    run.parallel = layout;
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << layout_text(layout);
  }
}

TEST(RewardModel, GivesOneRanksAnswer) {
  expect_one_ranks_answer(tiny_llama(), "tp2 tp2sp pp2 cp2 cp3 dp2zero3 tp2spcp2 pp2dp2zero3");
}

// The embedding is not tied to a head that is not there.
TEST(RewardModel, OfATiedModelGivesOneRanksAnswer) {
  expect_one_ranks_answer(tiny_gpt(), "tp2sp pp2 tp2spcp2");
}

}  // namespace
}  // namespace bev::test
