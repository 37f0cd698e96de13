// The squares of this rank's share of the gradient, for its norm: every parameter counts once over
// all ranks. An op that makes the whole of a gradient may add its squares while it has it at hand,
// which saves reading it again; a pass over the others follows at the end of the step.
#pragma once

#include <vector>

#include "optim/optimizer.h"
#include "parallel/shard_plan.h"

namespace bev {

class GradientSquares {
 public:
  // Of the ranges that are counted.
  GradientSquares(const ShardPlan& plan, const StoreTools& tools,
                  const std::vector<OptimRange>& ranges);
  // Their gradients.
  const std::vector<View>& counted() const { return gradients_; }

  // A step of so many micro-batches, whose ops may add to *sum; null: they may not.
  void begin_step(std::int64_t micro_batches, double* sum);
  // Where the op that makes a gradient of this placement may add its squares; null: nowhere, since
  // more is going to be added to the gradient.
  double* early_sum(const Param& param, const Placement& placement) const;
  void added_early(const Param& param) { early_[static_cast<std::size_t>(param.index)] = true; }
  // Of all others, when the gradients are complete.
  void add_others(double* sum);

 private:
  // Nobody else has a part in the gradient.
  bool is_alone(const Param& param, const Placement& placement) const;

  const ShardPlan& plan_;
  const StoreTools& tools_;
  std::vector<View> gradients_;
  std::vector<std::size_t> params_;  // of them, by index
  double* sum_ = nullptr;
  std::vector<bool> counted_, early_;  // by parameter
  std::vector<View> others_;
};

}  // namespace bev
