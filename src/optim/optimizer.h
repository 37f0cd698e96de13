// The optimizer over flat ranges of parameters. Which ranges this rank owns is the shard plan's
// business.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "optim/config.h"
#include "optim/state_memory.h"

namespace bev {

struct AdamRange;

// A run of one parameter's local elements that this rank updates.
struct OptimRange {
  const Param* param = nullptr;
  std::int64_t offset = 0;  // in the flattened local parameter
  View value;               // flat, the model's dtype
  View grad;                // flat, the gradient dtype
  // Whether norms and other sums over the model's elements take it in: over all ranks every element
  // is in one range that is counted.
  bool counted = true;
};

class Optimizer {
 public:
  // Parameters that do not train must not be among the ranges. `host` is pinned memory, which a
  // configuration with offload needs: the state of some ranges lies there, and the same kernels
  // update it. It must outlive the optimizer.
  Optimizer(Context& ctx, std::vector<OptimRange> ranges, const OptimConfig& config,
            Arena* host = nullptr);
  ~Optimizer();

  // Takes the main parameters from the model's values (at the start, or after loading weights).
  void refresh_main(Context& ctx);
  // One update with lr, weight decay, gradient multiplier and skip flag of ctx.step.
  void step(Context& ctx);
  // *sum (f64, on the device) += the squares of the main parameters that are counted here.
  void add_squares(Context& ctx, double* sum) const;

  // Parameters of the whole model whose moments began after the first update, with the updates
  // before them, which bias correction leaves out: they were frozen until a run was resumed.
  const std::map<std::string, std::int64_t>& late_starts() const { return late_starts_; }
  void set_late_starts(std::map<std::string, std::int64_t> updates);

  const std::vector<OptimRange>& ranges() const { return ranges_; }
  const RangeState& state(std::size_t range) const { return states_[range]; }

 private:
  View main(std::size_t range) const;
  void list_adam_ranges();

  std::vector<OptimRange> ranges_;
  OptimConfig config_;
  StateMemory device_, host_;
  std::vector<RangeState> states_;  // of the ranges
  std::vector<AdamRange> adam_;     // as the kernel takes them
  std::map<std::string, std::int64_t> late_starts_;
  std::vector<View> counted_;  // main parameters of ranges that are counted
};

}  // namespace bev
