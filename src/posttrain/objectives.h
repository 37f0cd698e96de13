// Objectives of post-training as pure functions of log-probabilities in f64, with their gradients.
// They know no model, tensor or file; posttrain/objective_rules.h has the algorithms, each a row of
// settings. Whatever is finite in exact arithmetic is finite here.
//
// A loss is a mean, and `weight` is what it is the mean of (pairs, rows or tokens): the losses and
// metrics of parts of a batch, each times its weight, add up to those of the batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "posttrain/objective_rules.h"

namespace bev {

using Numbers = std::vector<double>;
using NumberRows = std::vector<Numbers>;

struct ObjectiveMetric {
  std::string name;  // TRL's
  double sum = 0, weight = 0;
  bool adds = true;  // false: an extreme value, which parts of a batch do not add up to
  double value() const { return sum / weight; }
};

struct ObjectiveValue {
  double loss = 0, weight = 0;
  Numbers losses;  // of pairs or rows, without the likelihood that is added to the loss
  std::vector<ObjectiveMetric> metrics;
};

// Pairs of completions. Log-probabilities are sums over the tokens of a completion; empty vectors
// of the reference are 0, lengths are needed where the settings take means.
struct PairBatch {
  Numbers policy_chosen, policy_rejected, ref_chosen, ref_rejected;
  Numbers chosen_lengths = {}, rejected_lengths = {};
  double chosen_nll = 0;
};
struct PairValue : ObjectiveValue {
  Numbers chosen, rejected;  // gradients of policy_chosen and policy_rejected
  double chosen_nll = 0;
};
PairValue pair_objective(const PairSettings& settings, const PairBatch& batch);

// Single completions that are desirable (labels 1) or not. The kl is the mean of the differences of
// mismatched completions, at least 0, and has no gradient.
struct KtoBatch {
  Numbers policy, ref, policy_kl, ref_kl, labels;
};
struct KtoValue : ObjectiveValue {
  Numbers policy;
};
KtoValue kto_objective(const KtoSettings& settings, const KtoBatch& batch);

// Rewards of the completions of pairs (Bradley-Terry); margins may be empty.
struct RewardBatch {
  Numbers chosen, rejected, margins;
};
struct RewardValue : ObjectiveValue {
  Numbers chosen, rejected;
};
RewardValue reward_objective(const RewardSettings& settings, const RewardBatch& batch);

// Sampled completions. Empty old log-probabilities are those of the policy, without gradient.
// Tokens of mask 0 are not looked at. Advantages are per row ([row][1]) or per token; if there are
// none they follow from rewards (NaN: none) and groups.
struct PolicyBatch {
  NumberRows logps, old_logps, ref_logps, sampling_logps, mask;
  NumberRows advantages = {};
  Numbers rewards = {};
  std::vector<std::int64_t> groups = {};
  // A critic's: its values of the tokens, those of the rollouts (empty: the same), and the returns
  // that it predicts. Empty values: there is no critic.
  NumberRows values = {}, old_values = {}, returns = {};
};
struct PolicyValue : ObjectiveValue {
  NumberRows logps, values;  // gradients
  NumberRows token_loss, advantages;
};
PolicyValue policy_objective(const PolicySettings& settings, const PolicyBatch& batch);
// The estimate of the KL divergence from a reference at a token, of log(reference / policy).
double kl_estimate(KlEstimate kind, double log_ratio);
// Advantages of rows from their rewards: over groups, or whitened over all tokens of the batch. A
// row without a reward, and the only row of a group, has none (0).
NumberRows advantages_of(const PolicySettings& settings, const PolicyBatch& batch);

struct GaeValue {
  NumberRows advantages, returns;  // 0 where the mask is
};
// Values and advantages are carried over tokens of mask 0.
GaeValue gae(const GaeSettings& settings, const NumberRows& rewards, const NumberRows& values,
             const NumberRows& mask);

// A teacher's likeliest tokens at a place, likeliest first, with the logarithms of their
// probabilities and, behind them, that of all others.
struct TopLogps {
  std::vector<std::int32_t> ids;
  Numbers logps;
};
// Those of logits that are divided by the temperature. The first of equal ones is likelier.
TopLogps top_logps(const Numbers& logits, double temperature, std::int64_t k);

// Rows of tokens of logits. Labels below 0 have no cross entropy.
struct DistillBatch {
  std::vector<NumberRows> student, teacher;
  NumberRows labels, mask;
  // In place of the teacher's logits, with as many tokens at least as the settings take.
  std::vector<std::vector<TopLogps>> top = {};
};
struct DistillValue : ObjectiveValue {
  std::vector<NumberRows> student;  // gradient
};
DistillValue distill_objective(const DistillSettings& settings, const DistillBatch& batch);

}  // namespace bev
