// Parameter groups, by patterns over global parameter names: which parameters train, with which
// learning rate and weight decay. Names, and so groups, do not depend on the layout.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optim/lr_schedule.h"
#include "tensor/step_state.h"

namespace bev {

class FieldList;
struct Param;

// Whether the pattern matches the whole name: * matches any characters, ? any single one.
bool matches_pattern(std::string_view pattern, std::string_view name);

// Settings of the parameters that match one of the patterns. A value that is not set keeps the
// result of earlier rules.
struct ParamRule {
  std::string flag;                   // origin of the rule in messages
  std::vector<std::string> patterns;  // a rule without a match is an error
  double lr_mult = -1, wd_mult = -1;  // factors on learning rate and weight decay; < 0: not set
  double lr = -1, min_lr = -1;        // limits of its own schedule; < 0: those of the run
  std::optional<bool> trains = {};

  bool has_own_lr() const { return lr >= 0; }
};

// The flags that define rules. Rules apply in this order: --decoupled-lr, --head-lr-mult,
// --lora-plus-ratio, --apply-wd-to-qk-layernorm, --param-group, --train-only, --freeze,
// --freeze-all-layers.
struct ParamGroupConfig {
  std::vector<std::string> param_group = {};  // PATTERN:NAME=VALUE[:NAME=VALUE...]
  std::vector<std::string> train_only = {}, freeze = {};
  bool freeze_all_layers = false;
  double decoupled_lr = -1, decoupled_min_lr = -1;  // of word embeddings and head; < 0: not given
  double head_lr_mult = 1;
  double lora_plus_ratio = 1;  // learning rate of B over that of A
  bool apply_wd_to_qk_layernorm = false;

  bool operator==(const ParamGroupConfig&) const = default;
  void fields(FieldList& list);
  // Throws Error(kConfig) with all problems if a text is not a rule.
  std::vector<ParamRule> rules() const;
  // Problems of the flags for a model with these parameter names (empty: unknown) and a run whose
  // schedule ends at min_lr.
  std::vector<std::string> problems(std::span<const std::string> names, double min_lr) const;
};

// Sets trains, lr_mult, wd_mult and lr_index of the parameters that modules have declared. A
// parameter that its module has frozen stays frozen.
void apply_rules(std::span<const ParamRule> rules, std::span<Param* const> params);

// All learning rates at this point of the run's schedule. A group with its own limits has the same
// warmup and decay between them.
LearningRates learning_rates(const LrSchedule& schedule, std::span<const ParamRule> rules,
                             std::int64_t consumed_samples);
// Index of the learning rate of --decoupled-lr, if given: its rule is the first.
inline constexpr int kDecoupledLrIndex = 1;

}  // namespace bev
