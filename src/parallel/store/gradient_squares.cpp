#include "parallel/store/gradient_squares.h"

#include "kernels/optim.h"
#include "parallel/store/gradient_sums.h"

namespace bev {

GradientSquares::GradientSquares(const ShardPlan& plan, const StoreTools& tools,
                                 const std::vector<OptimRange>& ranges)
    : plan_(plan), tools_(tools), counted_(plan.params().size()), early_(plan.params().size()) {
  for (const OptimRange& range : ranges) {
    if (!range.counted) continue;
    gradients_.push_back(range.grad);
    params_.push_back(static_cast<std::size_t>(range.param->index));
    counted_[params_.back()] = true;
  }
  others_.reserve(gradients_.size());
}

// With several micro-batches the op of the last one would have to add the squares, but a captured
// step uses one graph for all micro-batches but the first.
void GradientSquares::begin_step(std::int64_t micro_batches, double* sum) {
  sum_ = micro_batches == 1 ? sum : nullptr;
  early_.assign(early_.size(), false);
}

bool GradientSquares::is_alone(const Param& param, const Placement& placement) const {
  bool sums_over_tp = partial_over_tp(param, placement) && plan_.tensor_parallel(param).size() > 1;
  int bucket = plan_.place(param).bucket;
  return param.uses == 1 && !param.shared && !sums_over_tp && plan_.shards(bucket).size() == 1 &&
         plan_.replicas(bucket).size() == 1 && !plan_.splits(ShardingStrategy::kOptimGrads);
}

double* GradientSquares::early_sum(const Param& param, const Placement& placement) const {
  bool counts = sum_ != nullptr && counted_[static_cast<std::size_t>(param.index)];
  return counts && is_alone(param, placement) ? sum_ : nullptr;
}

void GradientSquares::add_others(double* sum) {
  others_.clear();
  for (std::size_t i = 0; i < gradients_.size(); ++i) {
    if (!early_[params_[i]]) others_.push_back(gradients_[i]);
  }
  tools_.kernels.optim.sum_squares(tools_.stream, others_, sum);
}

}  // namespace bev
