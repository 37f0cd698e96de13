#include "posttrain/objective_rules.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/fields.h"

namespace bev {

namespace {

using enum ObjectiveKind;

ObjectiveRule pair(std::string_view name, const PairSettings& settings) {
  return {.name = name, .kind = kPair, .pair = settings};
}
ObjectiveRule policy(std::string_view name, const PolicySettings& settings) {
  return {.name = name, .kind = kPolicy, .policy = settings};
}

const std::array kRules = {
    pair("dpo", {}),
    pair("ipo", {.formula = PairFormula::kSquared, .means = true}),
    pair("hinge", {.formula = PairFormula::kHinge}),
    pair("cdpo", {.smoothing = Smoothing::kMixed}),
    pair("robust", {.smoothing = Smoothing::kRobust}),
    pair("exo_pair", {.formula = PairFormula::kExo, .label_smoothing = 1e-3}),
    pair("nca_pair", {.formula = PairFormula::kNca}),
    pair("bco_pair", {.formula = PairFormula::kBco}),
    pair("sppo_hard", {.formula = PairFormula::kSppo}),
    pair("apo_zero", {.formula = PairFormula::kApoZero}),
    pair("apo_down", {.formula = PairFormula::kApoDown}),
    pair("discopop", {.formula = PairFormula::kDiscovered}),
    pair("sigmoid_norm", {.means = true}),
    pair("orpo", {.formula = PairFormula::kOddsRatio,
                  .reference = false,
                  .means = true,
                  .likelihood = Likelihood::kWhole,
                  .nll_tokens = NllTokens::kAll}),
    pair("simpo",
         {.smoothing = Smoothing::kMixed, .reference = false, .means = true, .gamma = 0.5}),
    pair("cpo",
         {.smoothing = Smoothing::kMixed, .reference = false, .likelihood = Likelihood::kCpoAlpha}),
    ObjectiveRule{.name = "kto", .kind = kKto},
    ObjectiveRule{.name = "reward", .kind = kReward},
    policy("grpo", {.aggregation = Aggregation::kSeqMeanTokenMean}),
    policy("dr_grpo",
           {.aggregation = Aggregation::kSeqMeanTokenSumNorm, .advantage_std = Spread::kNone}),
    policy("dapo", {.epsilon_high = 0.28}),
    policy("gspo", {.sequence_ratio = true,
                    .epsilon_low = 3e-4,
                    .epsilon_high = 4e-4,
                    .aggregation = Aggregation::kSeqMeanTokenMean}),
    policy("cispo", {.clips_weight = true, .epsilon_low = 0, .epsilon_high = 5}),
    policy("rloo", {.advantage_std = Spread::kNone, .leave_one_out = true}),
    policy("reinforce++", {.whitens = true, .advantage_eps = 1e-8}),
    policy("ppo", {.critic = true}),
    ObjectiveRule{.name = "gae", .kind = kGae},
    ObjectiveRule{.name = "distill", .kind = kDistill},
};

}  // namespace

void PairSettings::fields(FieldList& list) {
  list.add("beta", beta, "strength of the pull towards the reference, or scale of the rewards")
      .above(0);
  list.add("label-smoothing", label_smoothing,
           "share of pairs that are taken to be the wrong way round (cdpo, robust, exo_pair, simpo,"
           " cpo)")
      .min(0)
      .below(1);
  list.add("gamma", gamma, "margin that simpo wants between the scaled rewards");
  list.add("cpo-alpha", cpo_alpha, "factor of the likelihood of the chosen answer in cpo").min(0);
  list.add("nll-tokens", nll_tokens,
           {{"completion", NllTokens::kCompletion}, {"all", NllTokens::kAll}},
           "tokens of that likelihood, in cpo and orpo; all: of the prompt too");
}

void KtoSettings::fields(FieldList& list) {
  list.add("beta", beta, "strength of the pull towards the reference").above(0);
  list.add("desirable-weight", desirable_weight, "weight of the desirable rows").min(0);
  list.add("undesirable-weight", undesirable_weight, "weight of the undesirable rows").min(0);
}

void RewardSettings::fields(FieldList& list) {
  list.add("center-rewards-coefficient", center_rewards_coefficient,
           "pull of the rewards of a pair towards a sum of 0")
      .min(0);
}

void PolicySettings::fields(FieldList& list) {
  list.add("epsilon-low", epsilon_low, "lower clip: 1 - epsilon (cispo: the bound itself)").min(0);
  list.add("epsilon-high", epsilon_high, "upper clip: 1 + epsilon (cispo: the bound itself)")
      .min(0);
  list.add("dual-clip", dual_clip, "bound of the loss of a negative advantage; 0: none").min(0);
  list.add("delta", delta, "upper bound of the unclipped ratio; 0: none").min(0);
  list.add("beta", beta, "factor of the KL divergence from the reference").min(0);
  list.add("kl", kl, {{"k1", KlEstimate::kK1}, {"k2", KlEstimate::kK2}, {"k3", KlEstimate::kK3}},
           "estimate of that divergence");
  list.add("aggregation", aggregation,
           {{"token-mean", Aggregation::kTokenMean},
            {"seq-mean-token-mean", Aggregation::kSeqMeanTokenMean},
            {"seq-mean-token-sum", Aggregation::kSeqMeanTokenSum},
            {"seq-mean-token-sum-norm", Aggregation::kSeqMeanTokenSumNorm}},
           "mean of the token losses over the global batch");
  list.add("max-completion-length", max_completion_length,
           "tokens by which seq-mean-token-sum-norm divides")
      .min(0);
  list.add(
      "advantage-std", advantage_std,
      {{"sample", Spread::kSample}, {"population", Spread::kPopulation}, {"none", Spread::kNone}},
      "standard deviation by which advantages are divided");
  list.add("advantage-eps", advantage_eps, "what is added to it").min(0);
  list.add("leave-one-out", leave_one_out, "baseline of a row: the mean of the others");
  list.add("correction", correction,
           {{"none", Correction::kNone},
            {"token_truncate", Correction::kTokenTruncate},
            {"token_mask", Correction::kTokenMask},
            {"sequence_truncate", Correction::kSequenceTruncate},
            {"sequence_mask", Correction::kSequenceMask}},
           "importance weights for samplers that differ from the trainer");
  list.add("correction-min", correction_min, "their lower bound").min(0);
  list.add("correction-max", correction_max, "their upper bound").min(0);
  if (!critic) return;
  list.add("vf-coef", vf_coef, "factor of the loss of the values").min(0);
  list.add("value-clip", value_clip,
           "how far a value may move from that of the rollouts before its loss stays; 0: any "
           "distance")
      .min(0);
}

void GaeSettings::fields(FieldList& list) {
  list.add("gamma", gamma, "discount").min(0).max(1);
  list.add("lambda", lambda, "share of later steps").min(0).max(1);
  list.add("whiten", whiten, "advantages of mean 0 and variance 1 over the mask");
}

void DistillSettings::fields(FieldList& list) {
  list.add("divergence", divergence,
           {{"forward_kl", Divergence::kForwardKl},
            {"reverse_kl", Divergence::kReverseKl},
            {"jsd", Divergence::kJsd}},
           "divergence of student and teacher");
  list.add("jsd-beta", jsd_beta, "weight of the teacher in the mixture of jsd").min(0).max(1);
  list.add("temperature", temperature, "what both logits are divided by").above(0);
  list.add("temperature-squared", temperature_squared, "multiply by the square of it");
  list.add("top-k", top_k, "likeliest tokens of the teacher that count; 0: all").min(0);
  list.add("tail", tail,
           {{"drop", Tail::kDrop}, {"renormalise", Tail::kRenormalise}, {"ghost", Tail::kGhost}},
           "what becomes of the other tokens");
  list.add("alpha", alpha, "weight of the divergence; the rest is cross entropy").min(0).max(1);
}

void ObjectiveRule::fields(FieldList& list) {
  switch (kind) {
    case kPair:
      return pair.fields(list);
    case kKto:
      return kto.fields(list);
    case kReward:
      return reward.fields(list);
    case kPolicy:
      return policy.fields(list);
    case kGae:
      return gae.fields(list);
    case kDistill:
      return distill.fields(list);
  }
}

std::string ObjectiveRule::problem() const {
  double e = pair.label_smoothing;
  if (kind == kPair && pair.smoothing == Smoothing::kRobust && e >= 0.5) {
    return concat("label_smoothing ", e, ": robust needs less than 0.5");
  }
  if (kind == kPair && pair.formula == PairFormula::kExo && e <= 0) {
    return "label_smoothing 0: exo_pair needs more, such as 0.001";
  }
  if (kind != kPolicy) return "";
  if (policy.clips_weight && policy.epsilon_low > policy.epsilon_high) {
    return concat("epsilon_low ", policy.epsilon_low, ": ", name,
                  " takes both as bounds of the ratio, and epsilon_high is ", policy.epsilon_high);
  }
  if (policy.correction_min > policy.correction_max) {
    return concat("correction_min ", policy.correction_min, ": is above correction_max ",
                  policy.correction_max);
  }
  return "";
}

bool ObjectiveRule::uses_reference() const {
  return (kind == kPair && pair.reference) || kind == kKto || (kind == kPolicy && policy.beta > 0);
}

std::span<const ObjectiveRule> objective_rules() { return kRules; }

std::vector<std::string> objective_names() {
  std::vector<std::string> names;
  for (const ObjectiveRule& rule : kRules) names.emplace_back(rule.name);
  return names;
}

ObjectiveRule find_objective(std::string_view name) {
  auto found = std::ranges::find(kRules, name, &ObjectiveRule::name);
  if (found != kRules.end()) return *found;
  BEV_FAIL(ErrorKind::kConfig, "objective: '", name, "' is not one of ",
           join(objective_names(), ", "));
}

}  // namespace bev
