// Flags of training on preferences: the objective with its settings, its data and its reference.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/labelled/text_example.h"
#include "posttrain/objective_rules.h"

namespace bev {

class FieldList;

// A flag that sets a setting of an objective; "": it keeps the objective's own.
struct ObjectiveFlag {
  std::string_view flag, setting, text;
};
// Sets what is given; returns what is wrong.
std::vector<std::string> apply_flags(std::span<const ObjectiveFlag> flags, ObjectiveRule& rule);

struct PreferenceConfig {
  bool rollouts = false;  // completions are sampled by the run itself (`rl`); not a flag
  std::string objective;  // "": cross entropy of the next token, or the loss of an encoder
  std::vector<std::string> data, valid_data;
  std::string ref_model;
  std::int64_t max_prompt_length = 0, max_completion_length = 0;  // 0: no limit
  // Settings as given; "": that of the objective.
  std::string beta, label_smoothing, simpo_gamma, cpo_alpha, nll_tokens;
  std::string desirable_weight, undesirable_weight, center_rewards_coefficient;

  // Distillation of --teacher-model, on data of any kind.
  std::string teacher_model, divergence, jsd_beta, distill_temperature, temperature_squared;
  std::string distill_top_k, distill_tail, distill_alpha;
  double teacher_weight = 1;  // of --teacher-model in on-policy distillation

  bool distills() const { return objective == "distill"; }
  bool masks() const { return objective == "mlm"; }  // masked samples of token files
  // The task of examples with labels, which --data then has; nullopt: none.
  std::optional<TextTask> text_task() const;
  // The run has preferences as its data, or completions.
  bool any() const { return !objective.empty() && !distills() && !masks() && !text_task(); }
  void fields(FieldList& list);
  std::vector<std::string> problems() const;
  // The objective with its settings; problems() must be empty.
  ObjectiveRule rule() const;

 private:
  void add_data_fields(FieldList& list);
  void add_distill_fields(FieldList& list);
};

}  // namespace bev
