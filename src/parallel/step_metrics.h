// Metrics of a training step: those of the engine, the terms of the objective, router statistics,
// and metrics that the program asks for. A new metric of the engine is added here.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "autograd/metrics.h"
#include "models/config.h"
#include "ops/moe/moe.h"
#include "parallel/objective.h"
#include "parallel/router_load.h"

namespace bev {

struct MetricOptions {
  // Whether steps report them.
  bool params_norm = false, zero_gradients = false, max_attention_logit = false;
  bool clips_logits = false;  // the optimizer reads the largest attention logits (QK-clip)
  // Further metrics, to which ops or the objective add by name (Context::metric).
  std::vector<MetricSpec> metrics = {};
};

class StepMetrics {
 public:
  // Allocates the block in ctx.arena. A model without gradients has no router statistics.
  StepMetrics(const Context& ctx, const ModelConfig& model, const Objective& objective,
              const MetricOptions& options, bool gradients);
  StepMetrics(const StepMetrics&) = delete;
  StepMetrics& operator=(const StepMetrics&) = delete;

  const MetricBlock& block() const { return block_; }
  // Device addresses of sums that the step itself uses: the terms of the objective, the squares of
  // the gradient, and the rows lost in fixed-size all-to-alls.
  double* terms() const { return block_.at(loss_); }
  double* gradient_squares() const { return block_.at(grad_norm_); }
  double* lost_rows() const { return block_.at(lost_rows_); }
  // Where routers add their statistics; null without experts.
  const RouterStatistics* routers() const { return routers_.sums.empty() ? nullptr : &routers_; }
  // [layers, heads]: the largest attention logits of the step; empty if nobody asks.
  View max_logits() const { return logits_ ? block_.table(*logits_) : View{}; }
  std::size_t term_count() const { return term_count_; }
  // Zeroes the block at the start of a step.
  void clear(Context& ctx) const;

  // Values of a fetched copy of the block:
  double loss_sum(const std::vector<double>& copy) const { return block_.sum(copy, loss_); }
  bool any_lost(const std::vector<double>& copy) const { return block_.sum(copy, lost_rows_) > 0; }
  struct Told {
    double grad_norm = 0;
    std::span<const Metric> metrics;  // valid until the next call
    std::vector<RouterLoad> routers;
  };
  Told tell(const std::vector<double>& copy, std::span<const double> weights, double loss_scale);

 private:
  void declare_routers(Dtype wide);
  void declare_logits(Dtype wide, bool shown);

  const ModelConfig& model_;
  MetricBlock block_;
  RouterStatistics routers_;
  std::size_t term_count_;
  MetricId loss_, grad_norm_, lost_rows_;
  MetricId balance_loss_, z_loss_;  // means over the MoE layers
  std::optional<MetricId> max_logit_;
  std::optional<TableId> router_sums_, logits_;
};

}  // namespace bev
