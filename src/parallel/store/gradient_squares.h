// Sum of squares of this rank's share of the gradient, for the gradient norm (gradient clipping):
// over all ranks every parameter counts once. An op that computes a gradient completely may add its
// squares in the same kernel, which saves a read; the remaining gradients are read at the end of
// the step.
#pragma once

#include <vector>

#include "optim/optimizer.h"
#include "parallel/store/shard_plan.h"

namespace bev {

class GradientSquares {
 public:
  // `ranges` are the optimizer ranges that are counted on this rank.
  GradientSquares(const ShardPlan& plan, const StoreTools& tools,
                  const std::vector<OptimRange>& ranges);
  // The gradients of the ranges.
  const std::vector<View>& counted() const { return gradients_; }

  // Begins a step of `micro_batches`. Ops may add squares to *sum; null: they may not.
  void begin_step(std::int64_t micro_batches, double* sum);
  // Where the op that computes a gradient of this placement may add its squares; null if the
  // gradient is not complete after the op.
  double* early_sum(const Param& param, const Placement& placement) const;
  void added_early(const Param& param) { early_[static_cast<std::size_t>(param.index)] = true; }
  // Adds the squares of all other gradients. Called when the gradients are complete.
  void add_others(double* sum);

 private:
  // Whether this use alone produces the gradient: no other rank contributes to it.
  bool is_alone(const Param& param, const Placement& placement) const;

  const ShardPlan& plan_;
  const StoreTools& tools_;
  std::vector<View> gradients_;
  std::vector<std::size_t> params_;  // their parameters, by index
  double* sum_ = nullptr;
  std::vector<bool> counted_, early_;  // by parameter
  std::vector<View> others_;
};

}  // namespace bev
