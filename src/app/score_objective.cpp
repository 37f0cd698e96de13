#include "app/score_objective.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/batch_file.h"
#include "infer/token_scores.h"
#include "posttrain/objective_input.h"
#include "posttrain/objective_text.h"
#include "posttrain/objectives.h"

namespace bev {

namespace {

using Json = nlohmann::ordered_json;

FieldId list_of(const ObjectiveRule& rule) {
  switch (rule.kind) {
    case ObjectiveKind::kPair:
    case ObjectiveKind::kReward:
      return kPairs;
    case ObjectiveKind::kKto:
      return kPreferenceRows;
    case ObjectiveKind::kPolicy:
      return kRollouts;
    default:
      BEV_FAIL(ErrorKind::kConfig, "--objective ", rule.name,
               ": is no objective over completions; `bevatron objective` computes it of numbers");
  }
}

void check_names(const JsonPlace& object, const ObjectiveRule& rule) {
  std::string list(list_of(rule).name);
  for (const std::string& name : object.names()) {
    BEV_CHECK(name == list || name == kSettings.name, ErrorKind::kInput, object.where(), ": ", name,
              " is no field of a batch for ", rule.name, "; it has ", list, " and ",
              kSettings.name);
  }
}

// Rewards come from a head of one output, log-probabilities from an output layer.
void check_head(const ObjectiveRule& rule, const ModelConfig& model, bool has_reference) {
  bool rewards = rule.kind == ObjectiveKind::kReward;
  BEV_CHECK(!rewards || !has_reference, ErrorKind::kConfig, "--ref-model: --objective ", rule.name,
            " has no reference; leave it away");
  BEV_CHECK(
      !rewards || model.num_labels == 1, ErrorKind::kInput, "--objective ", rule.name,
      ": needs a reward model (a folder of ...ForSequenceClassification with one label), and ",
      "this model has ", model.num_labels, " labels; `train --objective reward` makes one");
  BEV_CHECK(rewards || model.num_labels == 0, ErrorKind::kInput, "--objective ", rule.name,
            ": needs a language model, and this one scores sequences (", model.num_labels,
            " labels); give another, or --objective reward");
}

std::span<const double> numbers_of(const TokenSample& sample, FieldId id) {
  auto found = std::ranges::find(sample.fields, id, &SampleField::id);
  if (found == sample.fields.end()) return {};
  return std::get<std::vector<double>>(found->values);
}

// The numbers of all samples; empty if they have none.
Numbers column(const GlobalBatch& batch, FieldId id) {
  Numbers out;
  for (const TokenSample& sample : batch.samples) {
    for (double value : numbers_of(sample, id)) out.push_back(value);
  }
  return out;
}

// Sums of the completions of all documents, from the scores of all tokens; none of none.
Numbers completion_sums(std::span<const TokenSample> samples, const NumberRows& scores) {
  Numbers out;
  if (scores.empty()) return out;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::size_t t = 0;
    for (std::int32_t length : samples[i].documents) {
      double sum = 0;
      for (std::size_t end = t + static_cast<std::size_t>(length); t + 1 < end; ++t) {
        if (samples[i].weights[t] != 0) sum += scores[i][t + 1];
      }
      ++t;
      out.push_back(sum);
    }
  }
  return out;
}

// Number of completion tokens of every document.
Numbers completion_lengths(std::span<const TokenSample> samples) {
  NumberRows ones;
  for (const TokenSample& sample : samples) ones.emplace_back(sample.tokens.size(), 1.0);
  return completion_sums(samples, ones);
}

Numbers every_second(const Numbers& values, std::size_t first) {
  Numbers out;
  for (std::size_t i = first; i < values.size(); i += 2) out.push_back(values[i]);
  return out;
}

// Mean over the chosen rows' targets.
double chosen_nll(std::span<const TokenSample> samples, const NumberRows& scores) {
  double sum = 0, count = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    for (std::size_t t = 0; t < static_cast<std::size_t>(samples[i].documents[0]); ++t) {
      if (samples[i].targets[t] < 0) continue;
      sum -= scores[i][t + 1];
      count += 1;
    }
  }
  return sum / count;
}

std::vector<TokenSample> mismatched(std::span<const TokenSample> samples) {
  std::vector<TokenSample> out;
  for (const TokenSample& sample : samples) {
    auto ids = [&](FieldId id) {
      auto found = std::ranges::find(sample.fields, id, &SampleField::id);
      return std::get<std::vector<std::int32_t>>(found->values);
    };
    TokenSample& other = out.emplace_back();
    other.tokens = ids(kKlTokens);
    other.targets = ids(kKlTargets);
    for (std::int32_t target : other.targets) other.weights.push_back(target >= 0 ? 1 : 0);
    other.documents = {static_cast<std::int32_t>(other.tokens.size())};
  }
  return out;
}

}  // namespace

// Log-probabilities of all tokens by both models, and of those of mismatched completions.
struct ObjectiveScore::Scores {
  NumberRows policy, reference, policy_kl, reference_kl;
};

ObjectiveScore::ObjectiveScore(const std::string& name, const std::string& path,
                               const ModelConfig& model, bool has_reference)
    : rule_(find_objective(name)) {
  const std::int64_t vocab_size = model.vocab_size;
  check_head(rule_, model, has_reference);
  JsonPlace object = JsonPlace::read(path);
  check_names(object, rule_);
  rule_.policy.critic = false;  // rollouts have advantages
  if (object.has(kSettings.name)) read_settings(rule_, object.member(kSettings.name));
  if (rule_.kind == ObjectiveKind::kPair || rule_.kind == ObjectiveKind::kReward) {
    bool scores_prompt = rule_.pair.nll_factor() != 0 && rule_.pair.nll_tokens == NllTokens::kAll;
    for (const PreferencePair& pair : read_pairs(object, vocab_size)) {
      batch_.samples.push_back(pair_sample(pair, scores_prompt));
    }
  } else if (rule_.kind == ObjectiveKind::kKto) {
    for (const LabelledRow& row : read_labelled_rows(object, vocab_size)) {
      batch_.samples.push_back(row_sample(row));
    }
    set_mismatched(batch_.samples);
  } else {
    read_policy_batch(object, vocab_size, has_reference);
  }
  for (const TokenSample& sample : batch_.samples) {
    batch_.columns = std::max(batch_.columns, std::ssize(sample.tokens));
  }
  bool columns = !column(batch_, kRefLogps).empty();
  for (FieldId id : {kRefLogps, kRefChosenLogp}) {
    BEV_CHECK(!has_reference || column(batch_, id).empty(), ErrorKind::kInput,
              "--ref-model: the batch has ", id.name, "; keep one");
  }
  objective_ = std::make_unique<CompletionObjective>(
      rule_, CompletionInputs{.reference = columns || (has_reference && rule_.uses_reference()),
                              .sampling = !column(batch_, kSamplingLogps).empty()});
}

void ObjectiveScore::read_policy_batch(const JsonPlace& object, std::int64_t vocab_size,
                                       bool has_reference) {
  RolloutBatch read = read_rollouts(object, vocab_size);
  const PolicySettings& settings = rule_.policy;
  const Rollout& first = read.rollouts.front();
  const std::string where = concat(object.where(), ": ");
  BEV_CHECK(settings.beta == 0 || has_reference || !first.ref_logps.empty(), ErrorKind::kInput,
            where, "beta ", settings.beta, " needs ref_logps or --ref-model");
  BEV_CHECK(settings.correction == Correction::kNone || !first.sampling_logps.empty(),
            ErrorKind::kInput, where, "the correction needs sampling_logps");
  BEV_CHECK(settings.aggregation != Aggregation::kSeqMeanTokenSumNorm ||
                settings.max_completion_length > 0,
            ErrorKind::kInput, where,
            "max_completion_length is missing; seq-mean-token-sum-norm divides by it");
  if (!read.rewards.empty()) {
    PolicyBatch batch;
    batch.rewards = read.rewards;
    batch.groups = read.groups;
    for (const Rollout& rollout : read.rollouts) {
      bool all = rollout.mask.empty();
      batch.mask.push_back(all ? Numbers(rollout.completion.size(), 1.0) : rollout.mask);
    }
    NumberRows advantages = advantages_of(settings, batch);
    for (std::size_t i = 0; i < read.rollouts.size(); ++i) {
      read.rollouts[i].advantage = advantages[i][0];
    }
  }
  for (const Rollout& rollout : read.rollouts) {
    batch_.samples.push_back(rollout_sample(rollout));
    prompt_lengths_.push_back(std::ssize(rollout.prompt));
  }
}

ObjectiveScore::Scores ObjectiveScore::score(RankModel& policy, RankModel* reference,
                                             std::int64_t micro_batch_size) const {
  Scores out;
  out.policy = token_scores(policy, batch_.samples, micro_batch_size);
  if (reference) out.reference = token_scores(*reference, batch_.samples, micro_batch_size);
  if (rule_.kind != ObjectiveKind::kKto) return out;
  std::vector<TokenSample> others = mismatched(batch_.samples);
  out.policy_kl = token_scores(policy, others, micro_batch_size);
  if (reference) out.reference_kl = token_scores(*reference, others, micro_batch_size);
  return out;
}

namespace {

std::string pair_result(const ObjectiveRule& rule, const GlobalBatch& batch,
                        const NumberRows& policy, const NumberRows& reference, Json& logps) {
  Numbers sums = completion_sums(batch.samples, policy);
  Numbers lengths = completion_lengths(batch.samples);
  PairBatch pairs{.policy_chosen = every_second(sums, 0),
                  .policy_rejected = every_second(sums, 1),
                  .ref_chosen = column(batch, kRefChosenLogp),
                  .ref_rejected = column(batch, kRefRejectedLogp),
                  .chosen_lengths = every_second(lengths, 0),
                  .rejected_lengths = every_second(lengths, 1)};
  if (pairs.ref_chosen.empty() && !reference.empty()) {
    Numbers others = completion_sums(batch.samples, reference);
    pairs.ref_chosen = every_second(others, 0);
    pairs.ref_rejected = every_second(others, 1);
  }
  if (rule.pair.nll_factor() != 0) pairs.chosen_nll = chosen_nll(batch.samples, policy);
  logps["chosen"] = pairs.policy_chosen;
  logps["rejected"] = pairs.policy_rejected;
  return json_of(rule, pair_objective(rule.pair, pairs));
}

std::string reward_result(const ObjectiveRule& rule, const GlobalBatch& batch,
                          const NumberRows& scores, Json& rewards) {
  RewardBatch pairs;
  for (std::size_t i = 0; i + 1 < scores.size(); i += 2) {
    pairs.chosen.push_back(scores[i][0]);
    pairs.rejected.push_back(scores[i + 1][0]);
  }
  pairs.margins = column(batch, kMargin);
  rewards["chosen"] = pairs.chosen;
  rewards["rejected"] = pairs.rejected;
  return json_of(rule, reward_objective(rule.reward, pairs));
}

// The part of every row that is its completion.
NumberRows completions(const NumberRows& rows, std::span<const std::int64_t> prompts,
                       std::int64_t shift) {
  NumberRows out;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out.emplace_back(rows[i].begin() + prompts[i] - shift, rows[i].end() - shift);
  }
  return out;
}

std::string policy_result(const ObjectiveRule& rule, const GlobalBatch& batch,
                          std::span<const std::int64_t> prompts, const NumberRows& policy,
                          const NumberRows& reference, Json& logps) {
  // Fields and weights are at the token before, of which the completion is the target.
  auto rows_of = [&](FieldId id) {
    NumberRows rows;
    for (const TokenSample& sample : batch.samples) {
      std::span<const double> values = numbers_of(sample, id);
      if (values.empty()) return NumberRows();
      rows.emplace_back(values.begin(), values.end());
    }
    return completions(rows, prompts, 1);
  };
  PolicyBatch in;
  in.logps = completions(policy, prompts, 0);
  in.old_logps = rows_of(kOldLogps);
  in.ref_logps = rows_of(kRefLogps);
  in.sampling_logps = rows_of(kSamplingLogps);
  if (in.ref_logps.empty() && rule.uses_reference()) {
    in.ref_logps = completions(reference, prompts, 0);
  }
  NumberRows weights;
  for (const TokenSample& sample : batch.samples) {
    weights.emplace_back(sample.weights.begin(), sample.weights.end());
    in.advantages.push_back(
        {numbers_of(sample, kAdvantage).begin(), numbers_of(sample, kAdvantage).end()});
  }
  in.mask = completions(weights, prompts, 1);
  logps = in.logps;
  return json_of(rule, policy_objective(rule.policy, in));
}

}  // namespace

std::string ObjectiveScore::result(RankModel& policy, RankModel* reference,
                                   std::int64_t micro_batch_size, double grad_norm) const {
  const bool rewards = rule_.kind == ObjectiveKind::kReward;
  Scores scores;
  if (rewards) {
    scores.policy = sequence_scores(policy, batch_.samples, micro_batch_size);
  } else {
    scores = score(policy, reference, micro_batch_size);
  }
  if (policy.mesh().world().rank() != 0) return "";
  Json logps;
  std::string text;
  if (rewards) {
    text = reward_result(rule_, batch_, scores.policy, logps);
  } else if (rule_.kind == ObjectiveKind::kPair) {
    text = pair_result(rule_, batch_, scores.policy, scores.reference, logps);
  } else if (rule_.kind == ObjectiveKind::kPolicy) {
    text = policy_result(rule_, batch_, prompt_lengths_, scores.policy, scores.reference, logps);
  } else {
    std::vector<TokenSample> others = mismatched(batch_.samples);
    KtoBatch rows{.policy = completion_sums(batch_.samples, scores.policy),
                  .ref = completion_sums(batch_.samples, scores.reference),
                  .policy_kl = completion_sums(others, scores.policy_kl),
                  .ref_kl = completion_sums(others, scores.reference_kl),
                  .labels = column(batch_, kLabel)};
    logps = rows.policy;
    text = json_of(rule_, kto_objective(rule_.kto, rows));
  }
  Json out = Json::parse(text);
  out[rewards ? "rewards" : "logps"] = std::move(logps);
  out["grad_norm"] = std::isfinite(grad_norm) ? Json(grad_norm) : Json();
  return out.dump();
}

}  // namespace bev
