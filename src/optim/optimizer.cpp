#include "optim/optimizer.h"

#include "base/error.h"
#include "kernels/optim.h"

namespace bev {

Optimizer::Optimizer(Context& ctx, std::vector<OptimRange> ranges,
                     const std::vector<SharedParam>& shared, const OptimConfig& config, Arena* host)
    : ranges_(std::move(ranges)), config_(config) {
  allocate_states(ctx, host);
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (ranges_[i].counted) counted_.push_back(main(i));
  }
  make_rules(ctx, shared);
  if (config_.qk.qk_clip) make_qk_clip(ctx, shared);
  refresh_main(ctx);
}

Optimizer::~Optimizer() = default;

void Optimizer::allocate_states(Context& ctx, Arena* host) {
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
    if (sizes[i] > 0) (offloaded[i] ? on_host : on_device).add(sizes[i], kind(i));
  }
  device_ = StateMemory(ctx, ctx.arena, {config_, ctx.dtype, on_device});
  if (on_host.main.elements > 0) {
    host_ = StateMemory(ctx, *host, {config_, ctx.dtype, on_host});
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    states_.push_back(sizes[i] > 0 ? (offloaded[i] ? host_ : device_).take(sizes[i], kind(i))
                                   : RangeState());
  }
}

void Optimizer::make_rules(Context& ctx, const std::vector<SharedParam>& shared) {
  using Kind = OptimizerKind;
  std::vector<RuleRange> by_sign;
  std::map<Kind, std::vector<RuleRange>> by_kind;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    const bool sign = ranges_[i].param->sign_rate != 0;
    (sign ? by_sign : by_kind[kind(i)]).push_back({&ranges_[i], main(i), states_[i]});
  }
  if (!by_sign.empty()) rules_.push_back(make_sign(config_, std::move(by_sign)));
  if (needs_matrices(config_.optimizer)) {
    std::vector<SharedParam> params;
    for (const SharedParam& param : shared) {
      if (param.param->sign_rate == 0 && rule_of(config_, *param.param) == config_.optimizer) {
        params.push_back(param);
      }
    }
    auto matrices =
        std::make_unique<MatrixUpdates>(ctx, make_matrix_rule(config_, config_.optimizer),
                                        std::move(by_kind[config_.optimizer]), std::move(params));
    matrices_ = matrices.get();
    rules_.push_back(std::move(matrices));
    by_kind.erase(config_.optimizer);
  }
  for (auto& [kind, ranges] : by_kind) {
    const auto make = kind == Kind::kSgd ? make_sgd : kind == Kind::kLion ? make_lion : make_adam;
    rules_.push_back(make(config_, std::move(ranges)));
  }
}

void Optimizer::make_qk_clip(Context& ctx, const std::vector<SharedParam>& shared) {
  std::vector<RuleRange> ranges;
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (ranges_[i].param->logits.rows.empty()) continue;
    ranges.push_back({&ranges_[i], main(i), states_[i]});
  }
  qk_clip_ = std::make_unique<QkClip>(ctx, config_.qk, shared, std::move(ranges));
}

const std::vector<MatrixState>* Optimizer::matrix_states() const {
  return matrices_ != nullptr ? &matrices_->states() : nullptr;
}

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
  for (auto& rule : rules_) rule->set_late_starts(late_starts_);
}

void Optimizer::step(Context& ctx) {
  for (auto& rule : rules_) rule->step(ctx);
  if (qk_clip_ != nullptr) qk_clip_->step(ctx);
}

}  // namespace bev
