// Adam and AdamW: one kernel call for all ranges.
#include "base/philox.h"
#include "kernels/optim.h"
#include "optim/update_rule.h"

namespace bev {

namespace {

class Adam final : public UpdateRule {
 public:
  Adam(const OptimConfig& config, std::vector<RuleRange> ranges)
      : UpdateRule(std::move(ranges)),
        rule_{.beta1 = config.adam_beta1,
              .beta2 = config.adam_beta2,
              .epsilon = config.adam_eps,
              .decoupled = config.optimizer != OptimizerKind::kAdamL2} {
    ranges_changed();
  }

  void step(Context& ctx) override {
    if (arguments_.empty()) return;
    rule_.state = ctx.step;
    ctx.kernels.optim.adam(ctx.stream, rule_, arguments_);
  }

 private:
  void ranges_changed() override {
    arguments_.clear();
    for (const RuleRange& range : ranges_) {
      arguments_.push_back({.main = range.main,
                            .grad = range.range->grad,
                            .m = range.state.m.values,
                            .v = range.state.v.values,
                            .values = range.range->value,
                            .m_scales = range.state.m.scales,
                            .v_scales = range.state.v.scales,
                            .lr_mult = range.param().lr_mult,
                            .wd_mult = range.param().wd_mult,
                            .eps_mult = range.param().eps_mult,
                            .lr_index = range.param().lr_index,
                            .updates_before = range.updates_before,
                            .random_stream = hash_name(range.param().name),
                            .first = range.range->offset});
    }
  }

  AdamRule rule_;
  std::vector<AdamRange> arguments_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_adam(const OptimConfig& config, std::vector<RuleRange> ranges) {
  return std::make_unique<Adam>(config, std::move(ranges));
}

}  // namespace bev
