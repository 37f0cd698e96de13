// SGD with momentum.
#include "kernels/optim.h"
#include "optim/update_rule.h"

namespace bev {

namespace {

class Sgd final : public UpdateRule {
 public:
  Sgd(const OptimConfig& config, std::vector<RuleRange> ranges)
      : UpdateRule(std::move(ranges)), momentum_(config.sgd_momentum) {}

  void step(Context& ctx) override {
    for (const RuleRange& range : ranges_) {
      ctx.kernels.optim.sgd(ctx.stream, {.main = range.main,
                                         .grad = range.range->grad,
                                         .m = range.state.m.values,
                                         .values = range.range->value,
                                         .state = ctx.step,
                                         .lr_mult = range.param().lr_mult,
                                         .wd_mult = range.param().wd_mult,
                                         .lr_index = range.param().lr_index,
                                         .momentum = momentum_});
    }
  }

 private:
  double momentum_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_sgd(const OptimConfig& config, std::vector<RuleRange> ranges) {
  return std::make_unique<Sgd>(config, std::move(ranges));
}

}  // namespace bev
