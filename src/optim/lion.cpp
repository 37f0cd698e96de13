// Lion: updates of one size, with one moment.
#include "kernels/optim.h"
#include "optim/update_rule.h"

namespace bev {

namespace {

class Lion final : public UpdateRule {
 public:
  Lion(const OptimConfig& config, std::vector<RuleRange> ranges)
      : UpdateRule(std::move(ranges)), beta1_(config.lion_beta1), beta2_(config.lion_beta2) {}

  void step(Context& ctx) override {
    for (const RuleRange& range : ranges_) {
      ctx.kernels.optim.lion(ctx.stream, {.main = range.main,
                                          .grad = range.range->grad,
                                          .m = range.state.m.values,
                                          .values = range.range->value,
                                          .state = ctx.step,
                                          .lr_mult = range.param().lr_mult,
                                          .wd_mult = range.param().wd_mult,
                                          .lr_index = range.param().lr_index,
                                          .beta1 = beta1_,
                                          .beta2 = beta2_});
    }
  }

 private:
  double beta1_, beta2_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_lion(const OptimConfig& config, std::vector<RuleRange> ranges) {
  return std::make_unique<Lion>(config, std::move(ranges));
}

}  // namespace bev
