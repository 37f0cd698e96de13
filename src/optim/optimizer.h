// The optimizer (Adam, AdamW, SGD) with master weights, over flat ranges of parameters. The shard
// plan decides which ranges this rank owns (ZeRO).
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

// A contiguous range of one parameter's local elements that this rank updates.
struct OptimRange {
  const Param* param = nullptr;
  std::int64_t offset = 0;  // in the flattened local parameter
  View value;               // flat, the model's dtype
  View grad;                // flat, the gradient dtype
  // Whether norms and other sums over the model include the range. Over all ranks every element is
  // in exactly one counted range.
  bool counted = true;
};

class Optimizer {
 public:
  // The ranges must not contain frozen parameters. `host` is pinned memory, required for optimizer
  // offload: the state of some ranges is there, and the same kernels update it. It must outlive the
  // optimizer.
  Optimizer(Context& ctx, std::vector<OptimRange> ranges, const OptimConfig& config,
            Arena* host = nullptr);
  ~Optimizer();

  // Copies the master weights from the model's values (at the start, or after loading weights).
  void refresh_main(Context& ctx);
  // One update with the learning rates, weight decay, gradient multiplier and skip flag of
  // ctx.step.
  void step(Context& ctx);
  // *sum (f64, on the device) += the squares of the master weights of counted ranges.
  void add_squares(Context& ctx, double* sum) const;

  // Parameters of the whole model whose moments began late, because they were frozen until a run
  // was resumed, with the number of updates before that. Bias correction does not count these
  // updates.
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
  std::vector<RangeState> states_;  // by range
  std::vector<AdamRange> adam_;     // arguments of the kernel
  std::map<std::string, std::int64_t> late_starts_;
  std::vector<View> counted_;  // master weights of counted ranges
};

}  // namespace bev
