// The optimizer over flat ranges of parameters. Which ranges this rank owns is the shard plan's
// business.
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/context.h"
#include "optim/config.h"

namespace bev {

// A run of one parameter's local elements that this rank updates.
struct OptimRange {
  const Param* param = nullptr;
  std::int64_t offset = 0;  // in the flattened local parameter
  View value;               // flat, the model's dtype
  View grad;                // flat, the gradient dtype
};

// Moments and main parameters of the owned ranges, one after the other in the order of the ranges.
struct OptimState {
  Tensor main;  // the main parameters; empty when the model's own serve, being in that dtype
  Tensor m, v;  // v only for Adam
};

class Optimizer {
 public:
  // Parameters that do not train must not be among the ranges.
  Optimizer(Context& ctx, std::vector<OptimRange> ranges, const OptimConfig& config);

  // Takes the main parameters from the model's values (at the start, or after loading weights).
  void refresh_main(Context& ctx);
  // One update with lr, weight decay, gradient multiplier and skip flag of ctx.step.
  void step(Context& ctx);

  const std::vector<OptimRange>& ranges() const { return ranges_; }
  const OptimState& state() const { return state_; }
  // What one of the tensors of the state holds for a range; empty when there is no such tensor.
  View part(const Tensor& tensor, std::size_t range) const;

 private:
  View main(std::size_t range) const;
  void list_adam_ranges();

  std::vector<OptimRange> ranges_;
  std::vector<std::int64_t> begins_;  // of each range in the state tensors
  OptimConfig config_;
  OptimState state_;
  std::vector<AdamRange> adam_;  // as the kernel takes them
};

}  // namespace bev
