// Parameter groups by patterns over global names: which parameters train, with what learning rate
// and with what weight decay. Names are the same in every layout, so groups are too.
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

// Whether the pattern describes the whole name: * stands for any characters, ? for any one.
bool matches_pattern(std::string_view pattern, std::string_view name);

// What the parameters that one of the patterns matches have. A value that is not set stays what the
// rules before have made it.
struct ParamRule {
  std::string flag;                   // where the rule comes from, as messages call it
  std::vector<std::string> patterns;  // a rule that matches nothing is a mistake
  double lr_mult = -1, wd_mult = -1;  // factors on learning rate and weight decay; < 0: not set
  double lr = -1, min_lr = -1;        // the ends of a schedule of its own; < 0: those of the run
  std::optional<bool> trains = {};

  bool has_own_lr() const { return lr >= 0; }
};

// The flags that make rules. The rules apply in this order: --decoupled-lr, --head-lr-mult,
// --param-group, --train-only, --freeze, --freeze-all-layers.
struct ParamGroupConfig {
  std::vector<std::string> param_group = {};  // PATTERN:NAME=VALUE[:NAME=VALUE...]
  std::vector<std::string> train_only = {}, freeze = {};
  bool freeze_all_layers = false;
  double decoupled_lr = -1, decoupled_min_lr = -1;  // of word embeddings and head; < 0: not given
  double head_lr_mult = 1;

  bool operator==(const ParamGroupConfig&) const = default;
  void fields(FieldList& list);
  // Error(kConfig) with all problems where texts are no rules.
  std::vector<ParamRule> rules() const;
  // What is wrong with the flags for a model whose parameters have these names (empty: unknown) and
  // a run whose schedule ends at min_lr.
  std::vector<std::string> problems(std::span<const std::string> names, double min_lr) const;
};

// Sets trains, lr_mult, wd_mult and lr_index of the parameters, as modules have declared them. What
// a module itself keeps from training stays so.
void apply_rules(std::span<const ParamRule> rules, std::span<Param* const> params);

// All learning rates at that place of the run's schedule. A group with its own ends goes through
// the same warm-up and decay between them.
LearningRates learning_rates(const LrSchedule& schedule, std::span<const ParamRule> rules,
                             std::int64_t consumed_samples);
// Of --decoupled-lr, where it is given: its rule is the first.
inline constexpr int kDecoupledLrIndex = 1;

}  // namespace bev
