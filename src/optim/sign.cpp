// Sign updates: expert biases of load balancing without an auxiliary loss.
#include "kernels/optim.h"
#include "optim/update_rule.h"

namespace bev {

namespace {

class Sign final : public UpdateRule {
 public:
  using UpdateRule::UpdateRule;

  void step(Context& ctx) override {
    for (const RuleRange& range : ranges_) {
      ctx.kernels.optim.sign(ctx.stream, {.main = range.main,
                                          .grad = range.range->grad,
                                          .values = range.range->value,
                                          .state = ctx.step,
                                          .rate = range.param().sign_rate});
    }
  }
};

}  // namespace

std::unique_ptr<UpdateRule> make_sign(const OptimConfig&, std::vector<RuleRange> ranges) {
  return std::make_unique<Sign>(std::move(ranges));
}

}  // namespace bev
