#include "train/preference_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/fields.h"

namespace bev {

namespace {

constexpr std::pair<std::string_view, TextTask> kTextTasks[] = {
    {"classification", TextTask::kClasses},
    {"regression", TextTask::kNumber},
    {"token-classification", TextTask::kTags},
    {"spans", TextTask::kSpans}};

std::vector<std::string> trainable_names(bool rollouts) {
  std::vector<std::string> names;
  for (const ObjectiveRule& rule : objective_rules()) {
    bool given = rule.kind == ObjectiveKind::kPair || rule.kind == ObjectiveKind::kKto ||
                 rule.kind == ObjectiveKind::kReward || rule.kind == ObjectiveKind::kDistill;
    if (rollouts ? rule.kind == ObjectiveKind::kPolicy : given) names.emplace_back(rule.name);
  }
  if (rollouts) return names;
  names.emplace_back("mlm");
  for (const auto& [name, task] : kTextTasks) names.emplace_back(name);
  return names;
}

std::vector<std::string> apply(const PreferenceConfig& config, ObjectiveRule& rule) {
  const ObjectiveFlag flags[] = {
      {"beta", "beta", config.beta},
      {"label-smoothing", "label-smoothing", config.label_smoothing},
      {"simpo-gamma", "gamma", config.simpo_gamma},
      {"cpo-alpha", "cpo-alpha", config.cpo_alpha},
      {"nll-tokens", "nll-tokens", config.nll_tokens},
      {"desirable-weight", "desirable-weight", config.desirable_weight},
      {"undesirable-weight", "undesirable-weight", config.undesirable_weight},
      {"center-rewards-coefficient", "center-rewards-coefficient",
       config.center_rewards_coefficient},
      {"divergence", "divergence", config.divergence},
      {"jsd-beta", "jsd-beta", config.jsd_beta},
      {"distill-temperature", "temperature", config.distill_temperature},
      {"temperature-squared", "temperature-squared", config.temperature_squared},
      {"distill-top-k", "top-k", config.distill_top_k},
      {"distill-tail", "tail", config.distill_tail},
      {"distill-alpha", "alpha", config.distill_alpha}};
  return apply_flags(flags, rule);
}

}  // namespace

std::vector<std::string> apply_flags(std::span<const ObjectiveFlag> flags, ObjectiveRule& rule) {
  FieldList list;
  rule.fields(list);
  std::vector<std::string> out;
  for (const ObjectiveFlag& given : flags) {
    if (given.text.empty()) continue;
    Field* field = list.find(given.setting);
    std::string problem = field == nullptr ? concat(rule.name, " has no such setting; leave it out")
                                           : field->set_text(given.text);
    if (!problem.empty()) out.push_back(concat("--", given.flag, ": ", problem));
  }
  std::string problem = rule.problem();
  if (out.empty() && !problem.empty()) out.push_back(concat("--objective: ", problem));
  return out;
}

void PreferenceConfig::fields(FieldList& list) {
  list.add(
          "objective", objective,
          rollouts
              ? "how completions that were sampled become a loss"
              : "trains on preferences, the loss of --data, or distils --teacher-model; mlm: "
                "predicts masked tokens of --data-path, of an encoder; classification, regression, "
                "token-classification, spans: an encoder learns the labels of --data")
      .one_of(trainable_names(rollouts))
      .defaults_to(rollouts ? "grpo" : "cross entropy of the next token");
  add_data_fields(list);
  const char* own = "that of the objective";
  Field& pull =
      list.add("beta", beta, "strength of the pull towards the reference, or scale of the rewards")
          .defaults_to(own);
  if (rollouts) {
    pull.alias("grpo-kl-beta");
    return;
  }
  list.add("label-smoothing", label_smoothing, "share of pairs taken to be the wrong way round")
      .defaults_to(own);
  list.add("simpo-gamma", simpo_gamma, "margin that simpo wants between the rewards")
      .defaults_to(own);
  list.add("cpo-alpha", cpo_alpha, "factor of the likelihood of the chosen answer in cpo")
      .defaults_to(own);
  list.add("nll-tokens", nll_tokens,
           "tokens of that likelihood in cpo and orpo: completion, or all with the prompt")
      .defaults_to(own);
  list.add("desirable-weight", desirable_weight, "weight of kto's desirable rows").defaults_to(own);
  list.add("undesirable-weight", undesirable_weight, "weight of kto's undesirable rows")
      .defaults_to(own);
  list.add("center-rewards-coefficient", center_rewards_coefficient,
           "reward: pull of the rewards of a pair towards a sum of 0")
      .defaults_to(own);
  add_distill_fields(list);
}

void PreferenceConfig::add_distill_fields(FieldList& list) {
  list.add("teacher-model", teacher_model,
           "distill: Hugging Face folder of the teacher, of any size, with the same vocabulary");
  list.add("divergence", divergence, "distill: forward_kl, reverse_kl or jsd")
      .defaults_to("forward_kl");
  list.add("jsd-beta", jsd_beta, "distill: weight of the teacher in the mixture of jsd")
      .defaults_to("0.5");
  list.add("distill-temperature", distill_temperature, "distill: what both logits are divided by")
      .defaults_to("1");
  list.add("temperature-squared", temperature_squared,
           "distill: true multiplies the divergence by the square of the temperature")
      .defaults_to("false");
  list.add("distill-top-k", distill_top_k,
           "distill: likeliest tokens of the teacher that count; 0: all")
      .defaults_to("0");
  list.add("distill-tail", distill_tail,
           "distill: what becomes of the others: drop, renormalise or ghost")
      .defaults_to("drop");
  list.add("distill-alpha", distill_alpha,
           "distill: weight of the divergence; the rest is cross entropy")
      .defaults_to("1");
}

void PreferenceConfig::add_data_fields(FieldList& list) {
  if (rollouts) {
    list.add("data", data,
             "JSON lines {\"prompt\": text or list of messages, \"label\" or \"answer\": ..}; "
             "rewards see the whole row");
    list.add("ref-model", ref_model, "Hugging Face folder of the reference, for --beta")
        .defaults_to("--hf-model; with LoRA the model without its adapters");
    list.add("teacher-model", teacher_model,
             "Hugging Face folder of a teacher (on-policy distillation): each token's advantage "
             "grows by --teacher-weight x (its log-probability by the teacher - by the policy)");
    list.add("teacher-weight", teacher_weight, "weight of the teacher").min(0);
    list.add("max-prompt-length", max_prompt_length,
             "tokens of a prompt; rows with more are left out; 0: what --seq-length leaves")
        .min(0);
    list.add("max-completion-length", max_completion_length, "tokens of a completion")
        .min(0)
        .defaults_to("256");
    return;
  }
  list.add("data", data,
           "JSON lines, JSON arrays or Parquet with prompt, chosen and rejected (texts or lists of "
           "messages; without prompt it is their common beginning), for kto with prompt, "
           "completion and label");
  list.add("valid-data", valid_data, "the same, for validation");
  list.add("ref-model", ref_model, "Hugging Face folder of the reference")
      .defaults_to("--hf-model; none if the data has ref_chosen_logps and ref_rejected_logps");
  list.add("max-prompt-length", max_prompt_length,
           "tokens of a prompt, of which longer ones keep the end; 0: no limit but --seq-length, "
           "which is that of prompt and answer: answers are cut to it, and rows are left out whose "
           "prompt is as long")
      .min(0);
  list.add("max-completion-length", max_completion_length,
           "tokens of an answer, of which longer ones keep the beginning; 0: no limit")
      .min(0);
}

std::vector<std::string> PreferenceConfig::problems() const {
  std::vector<std::string> out;
  if (distills() && teacher_model.empty()) {
    out.push_back("--teacher-model: is missing; --objective distill learns from it");
  }
  if (objective.empty() || masks()) return out;
  if (text_task()) {
    if (data.empty()) out.push_back("--data: is missing; --objective needs files with labels");
    return out;
  }
  if (any() && data.empty())
    out.push_back(rollouts ? "--data: is missing; give JSON lines with prompts"
                           : "--data: is missing; --objective needs files with preferences");
  ObjectiveRule rule = find_objective(objective);
  for (std::string& problem : apply(*this, rule)) out.push_back(std::move(problem));
  if (!ref_model.empty() && !rule.uses_reference()) {
    out.push_back(concat("--ref-model: ", objective, " has no reference; leave it out"));
  }
  return out;
}

std::optional<TextTask> PreferenceConfig::text_task() const {
  for (const auto& [name, task] : kTextTasks) {
    if (objective == name) return task;
  }
  return std::nullopt;
}

ObjectiveRule PreferenceConfig::rule() const {
  ObjectiveRule rule = find_objective(objective);
  std::vector<std::string> problems = apply(*this, rule);
  BEV_CHECK(problems.empty(), ErrorKind::kConfig, join(problems, "; "));
  return rule;
}

}  // namespace bev
