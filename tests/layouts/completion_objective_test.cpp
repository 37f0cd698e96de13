// Objectives over completions give the result of one rank and one micro-batch under every layout,
// whatever the batches are cut into.
#include "posttrain/completion_objective.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/preference/preference_sample.h"
#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

constexpr std::int64_t kVocabulary = 61;

TokenRow tokens(std::uint64_t seed, std::int64_t count) {
  return random_samples(kVocabulary, 1, count, seed)[0].tokens;
}

// Completions of one token and more, of very unequal lengths.
StepSamples pairs(std::uint64_t seed) {
  StepSamples samples;
  for (std::uint64_t i = 0; i < 5; ++i) {
    auto length = static_cast<std::int64_t>(1 + (seed + 3 * i) % 7);
    PreferencePair pair{.prompt = tokens(seed + i, 1 + length % 3),
                        .chosen = tokens(seed + 10 * i, length),
                        .rejected = tokens(seed + 100 * i, 8 - length),
                        .ref_chosen_logp = {},
                        .ref_rejected_logp = {},
                        .margin = {}};
    samples.push_back(pair_sample(pair, true));
  }
  return samples;
}

StepSamples labelled_rows(std::uint64_t seed) {
  StepSamples samples;
  for (std::uint64_t i = 0; i < 6; ++i) {
    auto length = static_cast<std::int64_t>(1 + (seed + 3 * i) % 5);
    samples.push_back(row_sample({.prompt = tokens(seed + i, 1 + length % 3),
                                  .completion = tokens(seed + 10 * i, length),
                                  .desirable = (seed + i) % 3 == 0,
                                  .kl_completion = {}}));
  }
  set_mismatched(samples);
  return samples;
}

StepSamples rollouts(std::uint64_t seed) {
  StepSamples samples;
  for (std::uint64_t i = 0; i < 6; ++i) {
    auto length = static_cast<std::int64_t>(2 + (seed + 3 * i) % 5);
    Rollout rollout{.prompt = tokens(seed + i, 1 + length % 3),
                    .completion = tokens(seed + 10 * i, length),
                    .advantage = std::sin(static_cast<double>(seed + i))};
    for (std::int64_t t = 0; t < length; ++t) {
      double noise = std::cos(static_cast<double>(seed + 7 * i) + static_cast<double>(t));
      rollout.mask.push_back((static_cast<std::int64_t>(i) + t) % 4 != 1 ? 1 : 0);
      rollout.old_logps.push_back(-4.1 + 0.5 * noise);
      rollout.sampling_logps.push_back(-4.1 + 0.4 * noise);
    }
    samples.push_back(rollout_sample(rollout));
  }
  return samples;
}

// A frozen model of other weights, and the preparation that uses it.
class WithReference final : public BatchPreparation {
 public:
  WithReference(const ObjectiveRule& rule, RankModel& policy)
      : reference_(policy.rank(), frozen(policy.options())),
        preparation_(rule, policy, &reference_) {}
  void prepare(std::span<MicroBatch> batches) override { preparation_.prepare(batches); }

 private:
  static ModelOptions frozen(ModelOptions options) {
    options.gradients = false;
    options.seed += 1;
    return options;
  }
  RankModel reference_;
  CompletionPreparation preparation_;
};

std::vector<ParallelConfig> layouts_of(const char* text) { return parse_layouts(text, {}); }

template <int kObjective>
struct Case;
#define BEV_OBJECTIVE_CASE(number, objective, maker, change) \
  template <>                                                \
  struct Case<number> {                                      \
    static constexpr auto kSamples = maker;                  \
    static ObjectiveRule rule() {                            \
      ObjectiveRule rule = find_objective(objective);        \
      change;                                                \
      return rule;                                           \
    }                                                        \
  }
BEV_OBJECTIVE_CASE(0, "dpo", pairs, rule.pair.beta = 0.5);
BEV_OBJECTIVE_CASE(1, "orpo", pairs, rule.pair.beta = 0.5);
BEV_OBJECTIVE_CASE(2, "ipo", pairs, rule.pair.beta = 0.5);
BEV_OBJECTIVE_CASE(3, "kto", labelled_rows, rule.kto.beta = 0.5);
BEV_OBJECTIVE_CASE(4, "dapo", rollouts, rule.policy.beta = 0.1);
BEV_OBJECTIVE_CASE(5, "gspo", rollouts, rule.policy.correction = Correction::kSequenceTruncate);
#undef BEV_OBJECTIVE_CASE

template <int kCase>
void expect_one_ranks_answer(const char* layouts) {
  ObjectiveRule rule = Case<kCase>::rule();
  CompletionObjective objective(rule, {.reference = true, .sampling = true});
  TinyRun run;
  run.model = tiny_llama();
  run.model.vocab_size = kVocabulary;
  run.objective = &objective;
  run.samples = Case<kCase>::kSamples;
  run.preparation = [](RankModel& policy) -> std::unique_ptr<BatchPreparation> {
    return std::make_unique<WithReference>(Case<kCase>::rule(), policy);
  };
  run.micro_batch_size = 6;
  LayoutAnswer expected = run_tiny(run);
  EXPECT_NE(expected.losses[0], expected.losses[2]);
  for (std::int64_t size : {1, 2, 4}) {
    run.micro_batch_size = size;
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << rule.name << " cut by " << size;
  }
  run.micro_batch_size = 2;
  for (const ParallelConfig& layout : layouts_of(layouts)) {
    run.parallel = layout;
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "")
        << rule.name << " " << layout_text(layout);
  }
}

TEST(CompletionObjective, PairsGiveOneRanksAnswer) {
  expect_one_ranks_answer<0>("tp2 tp2sp pp2 cp2 cp3 dp2zero3 tp2cp2 pp2dp2zero3");
  expect_one_ranks_answer<1>("tp2sp,cp2 pp2dp2zero3");
  expect_one_ranks_answer<2>("dp4 cp2");
}

TEST(CompletionObjective, KtoGivesOneRanksAnswer) {
  expect_one_ranks_answer<3>("tp2sp cp2 pp2 dp2zero3 pp2dp2zero3 tp2cp2");
}

TEST(CompletionObjective, PoliciesGiveOneRanksAnswer) {
  expect_one_ranks_answer<4>("tp2sp cp2 pp2 dp2zero3 tp2cp2");
  expect_one_ranks_answer<5>("cp2 dp2zero3 pp2dp2zero3");
}

}  // namespace
}  // namespace bev::test
