// Gradients of ZeRO-2 and ZeRO-3 (optim_grads, optim_grads_params): a rank keeps its shard of the
// reduced gradient only. The unreduced gradients of an FSDP unit have memory from the first sink
// until all parameters of the unit have had theirs; then they are reduce-scattered and added to the
// shard. That is one reduce-scatter per unit and micro-batch, and a reduction over tp of partial
// gradients.
//
// A schedule may defer wgrad (zero bubble), so that some parameters of a unit run ahead by several
// micro-batches. The sum is the same: gradients that are there are sent along and not awaited
// again.
#pragma once

#include "parallel/store/gradient_sums.h"

namespace bev {

class FsdpUnitGradients final : public GradientSums {
 public:
  FsdpUnitGradients(const ShardPlan& plan, const StoreTools& tools)
      : GradientSums(plan, tools, false) {
    begin_step(0);
  }

  void begin_step(std::int64_t micro_batches) override;
  void done(const Param& param) override;
  void pause() override;

 private:
  struct Slot {
    bool fresh = true;  // the unit's memory holds no gradient of it yet
    int ahead = 0;      // gradients since the last reduce-scatter, or ahead of it
  };
  struct Unit {
    Tensor whole;         // unreduced gradients; empty: closed
    int open_sinks = 0;   // sinks that ops are still writing to
    bool summed = false;  // the shard holds gradients of this step
  };
  GradSink open_sink(const Param& param) override;
  void reduce() override;
  // Number of gradients of the parameter per reduce-scatter. A parameter that is a unit by itself,
  // such as a tied embedding, is reduced at each use instead of held between two uses.
  int awaited(const Param& param) const;
  bool complete(int unit);
  void exchange(int unit);
  Slot& slot(const Param& param) { return slots_[static_cast<std::size_t>(param.index)]; }
  Unit& unit_of(const Param& param) {
    return units_[static_cast<std::size_t>(plan_.place(param).bucket)];
  }

  std::vector<Slot> slots_;  // by parameter
  std::vector<Unit> units_;
  PostedSum pending_;  // the last reduce-scatter, which may overlap with compute
};

}  // namespace bev
