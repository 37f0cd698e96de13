#include "parallel/step_metrics.h"

#include <algorithm>

namespace bev {

StepMetrics::StepMetrics(const Context& ctx, const ModelConfig& model, const Objective& objective,
                         const MetricOptions& options, bool gradients)
    : model_(model) {
  using Style = MetricStyle;
  auto shown_if = [](bool asked, Style style) { return asked ? style : Style::kHidden; };
  std::vector<std::string> names = objective.terms();
  term_count_ = names.size();
  auto declare_term = [&](std::size_t i) {
    return block_.declare({.name = names[i],
                           .style = Style::kLoss,
                           .form = MetricForm::kMean,
                           .term = i,
                           .key = i == 0 ? "loss" : ""});
  };
  loss_ = declare_term(0);
  if (gradients && has_routers(model)) declare_routers(ctx.wide());
  for (std::size_t i = 1; i < term_count_; ++i) declare_term(i);
  grad_norm_ = block_.declare({"grad norm", Style::kNumber, MetricForm::kGradientNorm});
  block_.declare({"num zeros", shown_if(options.zero_gradients, Style::kCount)});
  block_.declare({"params norm", shown_if(options.params_norm, Style::kNumber), MetricForm::kNorm,
                  MetricPhase::kUpdate});
  if (gradients && (options.max_attention_logit || options.clips_logits)) {
    declare_logits(ctx.wide(), options.max_attention_logit);
  }
  lost_rows_ = block_.declare({"lost rows", Style::kHidden});
  for (const MetricSpec& spec : options.metrics) block_.declare(spec);
  block_.allocate(ctx.arena);
  if (router_sums_) routers_ = router_statistics(ctx, model, block_.table(*router_sums_));
}

void StepMetrics::declare_routers(Dtype wide) {
  using Style = MetricStyle;
  auto mean = [&](const char* name) {
    return block_.declare({name, Style::kLoss, MetricForm::kSum, MetricPhase::kHost});
  };
  balance_loss_ = mean("load_balancing_loss");
  z_loss_ = mean("z_loss");
  router_sums_ = block_.declare_table(wide, router_sums_shape(model_));
}

void StepMetrics::declare_logits(Dtype wide, bool shown) {
  if (shown) {
    max_logit_ = block_.declare(
        {"max attention logit", MetricStyle::kNumber, MetricForm::kSum, MetricPhase::kHost});
  }
  const std::int64_t layers = model_.num_layers + model_.mtp_num_layers;
  logits_ = block_.declare_table(wide, {layers, model_.num_attention_heads}, Reduction::kMax);
}

void StepMetrics::clear(Context& ctx) const {
  block_.clear(ctx);
  if (!routers_.global_counts.empty()) ctx.kernels.fill(ctx.stream, routers_.global_counts, 0);
}

StepMetrics::Told StepMetrics::tell(const std::vector<double>& copy,
                                    std::span<const double> weights, double loss_scale) {
  Told told;
  told.metrics = block_.tell(copy, weights, loss_scale);
  told.grad_norm = block_.value(grad_norm_);
  if (max_logit_) block_.set(*max_logit_, std::ranges::max(block_.table_values(copy, *logits_)));
  if (routers() == nullptr) return told;
  told.routers = router_loads(model_, block_.table_values(copy, *router_sums_));
  double balance = 0, z = 0;
  for (const RouterLoad& load : told.routers) {
    balance += load.balance_loss;
    z += load.z_loss;
  }
  auto layers = static_cast<double>(told.routers.size());
  block_.set(balance_loss_, balance / layers);
  block_.set(z_loss_, z / layers);
  return told;
}

}  // namespace bev
