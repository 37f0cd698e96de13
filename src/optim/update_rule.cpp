#include "optim/update_rule.h"

namespace bev {

bool is_hidden_matrix(const Param& param) {
  const int dims = param.split.of_experts() ? 3 : 2;
  return param.shape.ndim() == dims && !param.table && param.sign_rate == 0;
}

bool needs_matrices(OptimizerKind kind) {
  return kind == OptimizerKind::kMuon || kind == OptimizerKind::kAdafactor ||
         kind == OptimizerKind::kSoap;
}

OptimizerKind rule_of(const OptimConfig& config, const Param& param) {
  switch (config.optimizer) {
    case OptimizerKind::kMuon:
      if (is_hidden_matrix(param)) return config.optimizer;
      return config.muon.scalar_optimizer == ScalarOptimizer::kLion ? OptimizerKind::kLion
                                                                    : OptimizerKind::kAdamW;
    case OptimizerKind::kSoap:
      return is_hidden_matrix(param) ? config.optimizer : OptimizerKind::kAdamW;
    default:
      return config.optimizer;
  }
}

void scale_rates(const OptimConfig& config, double width, std::span<Param* const> params) {
  using Kind = OptimizerKind;
  for (Param* param : params) {
    const Kind kind = rule_of(config, *param);
    const bool one_size =
        kind == Kind::kAdamW || kind == Kind::kAdamL2 || kind == Kind::kLion || kind == Kind::kSoap;
    if (!one_size || !is_hidden_matrix(*param)) continue;
    param->lr_mult /= width;
    param->eps_mult /= width;
  }
}

void UpdateRule::set_late_starts(const std::map<std::string, std::int64_t>& updates) {
  for (RuleRange& range : ranges_) {
    auto late = updates.find(range.param().name);
    range.updates_before = late == updates.end() ? 0 : late->second;
  }
  ranges_changed();
}

}  // namespace bev
