#include "optim/optimizer.h"

namespace bev {

Optimizer::Optimizer(Context& ctx, std::vector<OptimRange> ranges, const OptimConfig& config)
    : ranges_(std::move(ranges)), config_(config) {
  std::int64_t total = 0;
  for (const OptimRange& range : ranges_) {
    begins_.push_back(total);
    total += range.value.numel();
  }
  bool own_main = ctx.dtype != ctx.wide();
  if (own_main) state_.main = ctx.allocate(ctx.wide(), {total}, "optimizer");
  state_.m = ctx.allocate(ctx.wide(), {total}, "optimizer");
  ctx.kernels.elementwise.fill(ctx.stream, state_.m, 0);
  if (config_.optimizer != OptimizerKind::kSgd) {
    state_.v = ctx.allocate(ctx.wide(), {total}, "optimizer");
    ctx.kernels.elementwise.fill(ctx.stream, state_.v, 0);
  }
  refresh_main(ctx);
}

View Optimizer::part(const Tensor& tensor, std::size_t range) const {
  return tensor.view().rows(begins_[range], begins_[range] + ranges_[range].value.numel());
}

void Optimizer::refresh_main(Context& ctx) {
  if (state_.main.empty()) return;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    ctx.kernels.elementwise.cast(ctx.stream, ranges_[i].value, part(state_.main, i));
  }
}

void Optimizer::step(Context& ctx) {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const OptimRange& range = ranges_[i];
    View main = state_.main.empty() ? range.value : part(state_.main, i);
    double wd_mult = range.param->decays ? 1 : 0;
    if (config_.optimizer == OptimizerKind::kSgd) {
      ctx.kernels.optim.sgd(ctx.stream, {main, range.grad, part(state_.m, i), range.value, ctx.step,
                                         1, wd_mult, config_.sgd_momentum});
    } else {
      ctx.kernels.optim.adam(ctx.stream,
                             {main, range.grad, part(state_.m, i), part(state_.v, i), range.value,
                              ctx.step, 1, wd_mult, config_.adam_beta1, config_.adam_beta2,
                              config_.adam_eps, config_.optimizer == OptimizerKind::kAdamW});
    }
  }
}

}  // namespace bev
