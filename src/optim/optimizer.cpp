#include "optim/optimizer.h"

#include "base/error.h"
#include "base/philox.h"
#include "kernels/optim.h"

namespace bev {

Optimizer::Optimizer(Context& ctx, std::vector<OptimRange> ranges, const OptimConfig& config,
                     Arena* host)
    : ranges_(std::move(ranges)), config_(config) {
  std::vector<std::int64_t> sizes;
  for (const OptimRange& range : ranges_) {
    sizes.push_back(has_state(*range.param) ? range.value.numel() : 0);
  }
  const double fraction = config_.offloaded_fraction();
  BEV_CHECK(fraction == 0 || host != nullptr, ErrorKind::kInternal,
            "optimizer: offload needs host memory");
  const std::vector<bool> offloaded = choose_offloaded(sizes, fraction);
  StateSize on_device, on_host;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    (offloaded[i] ? on_host : on_device).add(sizes[i]);
  }
  device_ = StateMemory(ctx, ctx.arena, {config_, ctx.dtype, on_device});
  if (on_host.elements > 0) {
    host_ = StateMemory(ctx, *host, {config_, ctx.dtype, on_host});
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    states_.push_back(sizes[i] > 0 ? (offloaded[i] ? host_ : device_).take(sizes[i])
                                   : RangeState());
    if (ranges_[i].counted) counted_.push_back(main(i));
  }
  if (config_.optimizer != OptimizerKind::kSgd) list_adam_ranges();
  refresh_main(ctx);
}

Optimizer::~Optimizer() = default;

View Optimizer::main(std::size_t range) const {
  return states_[range].main.empty() ? ranges_[range].value : states_[range].main;
}

void Optimizer::refresh_main(Context& ctx) {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (states_[i].main.empty()) continue;
    ctx.kernels.cast(ctx.stream, ranges_[i].value, states_[i].main);
  }
}

void Optimizer::add_squares(Context& ctx, double* sum) const {
  ctx.kernels.optim.sum_squares(ctx.stream, counted_, sum);
}

void Optimizer::set_late_starts(std::map<std::string, std::int64_t> updates) {
  late_starts_ = std::move(updates);
  if (config_.optimizer != OptimizerKind::kSgd) list_adam_ranges();
}

void Optimizer::list_adam_ranges() {
  adam_.clear();
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const OptimRange& range = ranges_[i];
    if (range.param->sign_rate != 0) continue;
    auto late = late_starts_.find(range.param->name);
    adam_.push_back({.main = main(i),
                     .grad = range.grad,
                     .m = states_[i].m.values,
                     .v = states_[i].v.values,
                     .values = range.value,
                     .m_scales = states_[i].m.scales,
                     .v_scales = states_[i].v.scales,
                     .lr_mult = range.param->lr_mult,
                     .wd_mult = range.param->wd_mult,
                     .lr_index = range.param->lr_index,
                     .updates_before = late == late_starts_.end() ? 0 : late->second,
                     .random_stream = hash_name(range.param->name),
                     .first = range.offset});
  }
}

void Optimizer::step(Context& ctx) {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const OptimRange& range = ranges_[i];
    if (range.param->sign_rate == 0) continue;
    ctx.kernels.optim.sign(ctx.stream, {.main = main(i),
                                        .grad = range.grad,
                                        .values = range.value,
                                        .state = ctx.step,
                                        .rate = range.param->sign_rate});
  }
  if (config_.optimizer == OptimizerKind::kSgd) {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      const OptimRange& range = ranges_[i];
      if (range.param->sign_rate != 0) continue;
      ctx.kernels.optim.sgd(ctx.stream, {.main = main(i),
                                         .grad = range.grad,
                                         .m = states_[i].m.values,
                                         .values = range.value,
                                         .state = ctx.step,
                                         .lr_mult = range.param->lr_mult,
                                         .wd_mult = range.param->wd_mult,
                                         .lr_index = range.param->lr_index,
                                         .momentum = config_.sgd_momentum});
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
