// Gradients of optim_grads and optim_grads_params: of the sum over ranks only this rank's part is
// kept. A unit's unreduced gradients have memory from their first sink until all its parameters
// have had theirs; then they are exchanged and added to the part. That is an exchange per unit and
// micro-batch, and a sum over tp of what is partial there.
//
// A schedule may put weight gradients off, so that some parameters of a unit run ahead by several
// micro-batches. Sums do not mind: what is there is sent along, and is not waited for again.
#pragma once

#include "parallel/gradient_sums.h"

namespace bev {

class UnitGradients final : public GradientSums {
 public:
  UnitGradients(const ShardPlan& plan, const StoreTools& tools) : GradientSums(plan, tools, false) {
    begin_step(0);
  }

  void begin_step(std::int64_t micro_batches) override;
  void done(const Param& param) override;
  void pause() override;

 private:
  struct Slot {
    bool fresh = true;  // nothing of it in the unit's memory
    int ahead = 0;      // gradients that came since the last exchange, or ran ahead of it
  };
  struct Unit {
    Tensor whole;         // unreduced; empty: closed
    int open_sinks = 0;   // sinks that ops are still writing to
    bool summed = false;  // the kept part holds gradients of this step
  };
  GradSink open_sink(const Param& param) override;
  void reduce() override;
  // Gradients of the parameter that complete its share of an exchange. A table used twice in a
  // micro-batch, first in the forward, is exchanged at each use instead of kept in between.
  int awaited(const Param& param) const;
  bool complete(int unit);
  void exchange(int unit);
  Slot& slot(const Param& param) { return slots_[static_cast<std::size_t>(param.index)]; }
  Unit& unit_of(const Param& param) {
    return units_[static_cast<std::size_t>(plan_.place(param).bucket)];
  }

  std::vector<Slot> slots_;  // by parameter
  std::vector<Unit> units_;
  PostedSum pending_;  // the last exchange, which may run beside what computes
};

}  // namespace bev
