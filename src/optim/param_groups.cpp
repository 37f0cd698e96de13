#include "optim/param_groups.h"

#include <algorithm>
#include <set>

#include "autograd/param.h"
#include "base/fields.h"
#include "base/problems.h"
#include "base/text.h"

namespace bev {

bool matches_pattern(std::string_view pattern, std::string_view name) {
  std::size_t at = 0, next = 0;
  // Backtracking to the last star: the position after it in the pattern, and the first character of
  // the name that it does not match.
  std::size_t after_star = std::string_view::npos, retry = 0;
  while (next < name.size()) {
    if (at < pattern.size() && pattern[at] == '*') {
      after_star = ++at;
      retry = next;
    } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == name[next])) {
      ++at;
      ++next;
    } else if (after_star != std::string_view::npos) {
      at = after_star;
      next = ++retry;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', at) == std::string_view::npos;
}

namespace {

bool matches(const ParamRule& rule, std::string_view name) {
  return std::ranges::any_of(
      rule.patterns, [&](const std::string& pattern) { return matches_pattern(pattern, name); });
}

// The values that --param-group may set.
void value_fields(ParamRule& rule, FieldList& list) {
  list.add("lr-mult", rule.lr_mult, "").min(0);
  list.add("wd-mult", rule.wd_mult, "").min(0);
  list.add("lr", rule.lr, "").min(0);
  list.add("min-lr", rule.min_lr, "").min(0);
}

// Returns an error message, or "".
std::string set_value(ParamRule& rule, const std::string& text) {
  FieldList list;
  value_fields(rule, list);
  std::size_t equals = text.find('=');
  std::string name = text.substr(0, equals);
  Field* field = list.find(name);
  if (field == nullptr || equals == std::string::npos) {
    return concat("'", text, "' is none of ", join(list.spellings(), "=NUMBER, "), "=NUMBER");
  }
  std::string problem = field->set_text(text.substr(equals + 1));
  return problem.empty() ? "" : concat(name, ": ", problem);
}

ParamRule parse_rule(const std::string& text, std::vector<std::string>& problems) {
  std::vector<std::string> parts = split(text, ':');
  ParamRule rule{.flag = "--param-group", .patterns = {parts.front()}};
  auto refuse = [&](const std::string& why) {
    problems.push_back(concat(rule.flag, ": '", text, "': ", why));
  };
  if (parts.size() == 1) refuse("sets nothing; add for example :lr-mult=0.1 or :wd-mult=0");
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (std::string problem = set_value(rule, parts[i]); !problem.empty()) refuse(problem);
  }
  if (rule.min_lr >= 0 && !rule.has_own_lr()) refuse("min-lr needs lr; give both");
  return rule;
}

std::vector<ParamRule> make_rules(const ParamGroupConfig& config,
                                  std::vector<std::string>& problems) {
  std::vector<ParamRule> rules;
  if (config.decoupled_lr >= 0) {
    rules.push_back({.flag = "--decoupled-lr",
                     .patterns = {"embedding.word_embeddings.weight", "output_layer.weight"},
                     .lr = config.decoupled_lr,
                     .min_lr = config.decoupled_min_lr});
  }
  if (config.head_lr_mult != 1) {
    rules.push_back({.flag = "--head-lr-mult",
                     .patterns = {"output_layer.weight"},
                     .lr_mult = config.head_lr_mult});
  }
  if (config.lora_plus_ratio != 1) {
    rules.push_back({.flag = "--lora-plus-ratio",
                     .patterns = {"*.lora_b.weight"},
                     .lr_mult = config.lora_plus_ratio});
  }
  if (config.apply_wd_to_qk_layernorm) {
    rules.push_back({.flag = "--apply-wd-to-qk-layernorm",
                     .patterns = {"*.q_layernorm.weight", "*.k_layernorm.weight"},
                     .wd_mult = 1});
  }
  for (const std::string& text : config.param_group) rules.push_back(parse_rule(text, problems));
  if (!config.train_only.empty()) {
    rules.push_back({.flag = "--train-only", .patterns = {"*"}, .trains = false});
  }
  for (const std::string& pattern : config.train_only) {
    rules.push_back({.flag = "--train-only", .patterns = {pattern}, .trains = true});
  }
  for (const std::string& pattern : config.freeze) {
    rules.push_back({.flag = "--freeze", .patterns = {pattern}, .trains = false});
  }
  if (config.freeze_all_layers) {
    rules.push_back({.flag = "--freeze-all-layers", .patterns = {"*"}, .trains = false});
  }
  auto own = std::ranges::count_if(rules, &ParamRule::has_own_lr);
  if (own >= LearningRates::kMost) {
    problems.push_back(concat("--param-group: ", own, " groups have an lr of their own; at most ",
                              LearningRates::kMost - 1, " may, others take lr-mult"));
  }
  return rules;
}

// Names with every number replaced by a star, without duplicates: one entry for all layers.
std::vector<std::string> starred_names(std::span<const std::string> names) {
  std::set<std::string> out;
  for (const std::string& name : names) {
    std::vector<std::string> parts = split(name, '.');
    for (std::string& part : parts) {
      if (part.find_first_not_of("0123456789") == std::string::npos) part.assign(1, '*');
    }
    out.insert(join(parts, "."));
  }
  return {out.begin(), out.end()};
}

std::string near_names(const std::string& pattern, std::span<const std::string> names) {
  std::vector<std::string> candidates = starred_names(names);
  candidates.insert(candidates.end(), names.begin(), names.end());
  if (std::string nearest = nearest_name(pattern, candidates); !nearest.empty()) {
    return concat("did you mean ", nearest, "?");
  }
  constexpr std::size_t kMost = 12;
  candidates = starred_names(names);
  bool more = candidates.size() > kMost;
  if (more) candidates.resize(kMost);
  return concat("the model has ", join(candidates, ", "), more ? " and others" : "");
}

}  // namespace

void ParamGroupConfig::fields(FieldList& list) {
  list.add("decoupled-lr", decoupled_lr, "highest learning rate of word embeddings and head")
      .min(0)
      .defaults_to("lr");
  list.add("decoupled-min-lr", decoupled_min_lr,
           "with --decoupled-lr: their learning rate after the decay")
      .min(0)
      .defaults_to("min-lr");
  list.add("head-lr-mult", head_lr_mult, "factor on the head's learning rate").min(0);
  list.add("lora-plus-ratio", lora_plus_ratio,
           "LoRA+: learning rate of the factors B over that of the factors A; 16 is usual")
      .above(0);
  list.add("apply-wd-to-qk-layernorm", apply_wd_to_qk_layernorm,
           "weight decay of the norms of queries and keys too");
  list.add("param-group", param_group,
           "PATTERN:NAME=NUMBER[:NAME=NUMBER] for parameters by name, * and ? as in file names: "
           "factors lr-mult and wd-mult, or a schedule's own lr and min-lr; later ones win");
  list.add("train-only", train_only, "patterns of the parameters that train; all others do not");
  list.add("freeze", freeze, "patterns of parameters that do not train");
  list.add("freeze-all-layers", freeze_all_layers, "nothing trains: steps compute the loss");
}

std::vector<ParamRule> ParamGroupConfig::rules() const {
  std::vector<std::string> problems;
  std::vector<ParamRule> rules = make_rules(*this, problems);
  throw_problems(problems);
  return rules;
}

std::vector<std::string> ParamGroupConfig::problems(std::span<const std::string> names,
                                                    double min_lr) const {
  std::vector<std::string> found;
  std::vector<ParamRule> rules = make_rules(*this, found);
  for (const ParamRule& rule : rules) {
    double least = rule.min_lr >= 0 ? rule.min_lr : min_lr;
    if (rule.has_own_lr() && rule.lr < least) {
      found.push_back(concat(rule.flag, ": ", rule.lr, " for ", join(rule.patterns, " and "),
                             " is below the lowest learning rate ", least,
                             "; raise the one or lower the other"));
    }
    auto there = [&](const std::string& name) { return matches(rule, name); };
    if (names.empty() || std::ranges::any_of(names, there)) continue;
    const std::string& pattern = rule.patterns.front();
    found.push_back(concat(rule.flag, ": no parameter is called ", join(rule.patterns, " or "),
                           "; ", near_names(pattern, names)));
  }
  return found;
}

void apply_rules(std::span<const ParamRule> rules, std::span<Param* const> params) {
  for (Param* param : params) {
    int schedules = 0;
    bool trains = true;
    for (const ParamRule& rule : rules) {
      if (rule.has_own_lr()) ++schedules;
      if (!matches(rule, param->name)) continue;
      if (rule.lr_mult >= 0) param->lr_mult = rule.lr_mult;
      if (rule.wd_mult >= 0) param->wd_mult = rule.wd_mult;
      if (rule.has_own_lr()) param->lr_index = schedules;
      trains = rule.trains.value_or(trains);
    }
    param->trains = param->trains && trains;
  }
}

LearningRates learning_rates(const LrSchedule& schedule, std::span<const ParamRule> rules,
                             std::int64_t consumed_samples) {
  LearningRates rates = schedule.lr(consumed_samples);
  int index = 0;
  for (const ParamRule& rule : rules) {
    if (!rule.has_own_lr()) continue;
    LrSchedule own = schedule;
    own.max_lr = rule.lr;
    if (rule.min_lr >= 0) own.min_lr = rule.min_lr;
    rates.values[++index] = own.lr(consumed_samples);
  }
  return rates;
}

}  // namespace bev
