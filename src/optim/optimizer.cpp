#include "optim/optimizer.h"

#include "base/philox.h"

namespace bev {

Optimizer::Optimizer(Context& ctx, std::vector<OptimRange> ranges, const OptimConfig& config)
    : ranges_(std::move(ranges)), config_(config) {
  std::int64_t total = 0;
  for (const OptimRange& range : ranges_) {
    begins_.push_back(total);
    total += range.value.numel();
  }
  OptimDtypes dtypes = config_.dtypes.for_model(ctx.dtype);
  bool own_main = ctx.dtype != dtypes.main_params;
  if (own_main) state_.main = ctx.allocate(dtypes.main_params, {total}, "optimizer");
  state_.m = ctx.allocate(dtypes.exp_avg, {total}, "optimizer");
  ctx.kernels.elementwise.fill(ctx.stream, state_.m, 0);
  if (config_.optimizer != OptimizerKind::kSgd) {
    state_.v = ctx.allocate(dtypes.exp_avg_sq, {total}, "optimizer");
    ctx.kernels.elementwise.fill(ctx.stream, state_.v, 0);
    list_adam_ranges();
  }
  refresh_main(ctx);
}

View Optimizer::part(const Tensor& tensor, std::size_t range) const {
  if (tensor.empty()) return {};
  return tensor.view().rows(begins_[range], begins_[range] + ranges_[range].value.numel());
}

View Optimizer::main(std::size_t range) const {
  return state_.main.empty() ? ranges_[range].value : part(state_.main, range);
}

void Optimizer::refresh_main(Context& ctx) {
  if (state_.main.empty()) return;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    ctx.kernels.elementwise.cast(ctx.stream, ranges_[i].value, part(state_.main, i));
  }
}

void Optimizer::list_adam_ranges() {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const OptimRange& range = ranges_[i];
    if (range.param->sign_rate != 0) continue;
    adam_.push_back({.main = main(i),
                     .grad = range.grad,
                     .m = part(state_.m, i),
                     .v = part(state_.v, i),
                     .values = range.value,
                     .wd_mult = range.param->decays ? 1.0 : 0.0,
                     .random_stream = hash_name(range.param->name),
                     .first = range.offset});
  }
}

void Optimizer::step(Context& ctx) {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const OptimRange& range = ranges_[i];
    if (range.param->sign_rate == 0) continue;
    ctx.kernels.optim.sign(ctx.stream,
                           {main(i), range.grad, range.value, ctx.step, range.param->sign_rate});
  }
  if (config_.optimizer == OptimizerKind::kSgd) {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const OptimRange& range = ranges_[i];
      if (range.param->sign_rate != 0) continue;
      ctx.kernels.optim.sgd(ctx.stream,
                            {main(i), range.grad, part(state_.m, i), range.value, ctx.step, 1,
                             range.param->decays ? 1.0 : 0.0, config_.sgd_momentum});
    }
  } else if (!adam_.empty()) {
    ctx.kernels.optim.adam(ctx.stream,
                           {.state = ctx.step,
                            .beta1 = config_.adam_beta1,
                            .beta2 = config_.adam_beta2,
                            .epsilon = config_.adam_eps,
                            .decoupled = config_.optimizer == OptimizerKind::kAdamW},
                           adam_);
  }
}

}  // namespace bev
