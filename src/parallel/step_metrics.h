// The metrics of an engine's training steps: its own, the objective's terms, what routers chose,
// and those that a program asks for. This is the list to which a new one is added.
#pragma once

#include <span>
#include <vector>

#include "autograd/metrics.h"
#include "models/config.h"
#include "ops/moe.h"
#include "parallel/objective.h"
#include "parallel/router_load.h"

namespace bev {

struct MetricOptions {
  bool params_norm = false, zero_gradients = false;  // whether steps tell them
  // Further ones, which ops or the objective add to by name (Context::metric).
  std::vector<MetricSpec> metrics = {};
};

class StepMetrics {
 public:
  // The block lies in ctx.arena. A model without gradients has no statistics of routers.
  StepMetrics(const Context& ctx, const ModelConfig& model, const Objective& objective,
              const MetricOptions& options, bool gradients);
  StepMetrics(const StepMetrics&) = delete;
  StepMetrics& operator=(const StepMetrics&) = delete;

  const MetricBlock& block() const { return block_; }
  // Device addresses of sums that the step itself reads: the objective's terms one after the other,
  // the squares of the gradient, the rows that were lost where exchanges have a fixed size.
  double* terms() const { return block_.at(loss_); }
  double* gradient_squares() const { return block_.at(grad_norm_); }
  double* lost_rows() const { return block_.at(lost_rows_); }
  // Where routers add; null without experts.
  const RouterStatistics* routers() const { return routers_.sums.empty() ? nullptr : &routers_; }
  std::size_t term_count() const { return term_count_; }
  // The start of a step: everything is 0.
  void clear(Context& ctx) const;

  // Of a fetched copy of the block:
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

  const ModelConfig& model_;
  MetricBlock block_;
  RouterStatistics routers_;
  std::size_t term_count_;
  MetricId loss_, grad_norm_, lost_rows_;
  MetricId balance_loss_, z_loss_;  // means over the layers with experts
};

}  // namespace bev
