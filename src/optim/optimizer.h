// The optimizer of a rank: the states of the ranges of parameters that it owns (the shard plan
// decides which, ZeRO), and the rules that update them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "optim/config.h"
#include "optim/matrix_updates.h"
#include "optim/qk_clip.h"
#include "optim/state_memory.h"
#include "optim/update_rule.h"

namespace bev {

class Optimizer {
 public:
  // The ranges must not contain frozen parameters. `shared` are all trained parameters, for
  // optimizers of whole matrices. `host` is pinned memory, required for optimizer offload: the
  // state of some ranges is there, and the same kernels update it. It must outlive the optimizer.
  Optimizer(Context& ctx, std::vector<OptimRange> ranges, const std::vector<SharedParam>& shared,
            const OptimConfig& config, Arena* host = nullptr);
  ~Optimizer();

  // Copies the master weights from the model's values (at the start, or after loading weights).
  void refresh_main(Context& ctx);
  // One update with the learning rates, weight decay, gradient multiplier and skip flag of
  // ctx.step, then QK-clip by ctx.max_logits.
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
  // The kind of optimizer that updates a range.
  OptimizerKind kind(std::size_t range) const { return rule_of(config_, *ranges_[range].param); }
  // States of whole matrices; null: the optimizer has none.
  const std::vector<MatrixState>* matrix_states() const;

 private:
  View main(std::size_t range) const;
  void allocate_states(Context& ctx, Arena* host);
  void make_rules(Context& ctx, const std::vector<SharedParam>& shared);
  void make_qk_clip(Context& ctx, const std::vector<SharedParam>& shared);

  std::vector<OptimRange> ranges_;
  OptimConfig config_;
  StateMemory device_, host_;
  std::vector<RangeState> states_;  // by range
  std::vector<std::unique_ptr<UpdateRule>> rules_;
  const MatrixUpdates* matrices_ = nullptr;  // one of rules_
  std::unique_ptr<QkClip> qk_clip_;          // null: off
  std::map<std::string, std::int64_t> late_starts_;
  std::vector<View> counted_;  // master weights of counted ranges
};

}  // namespace bev
