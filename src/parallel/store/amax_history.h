// Delayed scaling for FP8: the amax history of every tensor of this rank's FP8 layers, in device
// memory. An entry is the amax of the global tensor in one step: the maximum over all micro-batches
// and over all ranks that hold a part of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/param.h"
#include "parallel/store/shard_plan.h"

namespace bev {

class AmaxHistory {
 public:
  // Takes the parameters whose recipe needs delayed scaling.
  AmaxHistory(const std::vector<Param*>& params, const StoreTools& tools);

  AmaxSlot slot(const Param& param, Fp8Role role) const;
  void begin_step();
  // Called after the optimizer has decided whether the step counts. Collective over tp, dp and cp.
  void finish_step(const StepState* state);

  // A tensor of the history as a checkpoint saves it; its name and shape do not depend on the
  // layout.
  struct Part {
    const Param* name_and_shape = nullptr;
    View memory;  // flat
  };
  const std::vector<Part>& parts() const { return parts_; }

 private:
  const StoreTools& tools_;
  std::vector<std::int64_t> places_;  // by index of the parameter; -1: no history
  Tensor seen_, used_;                // f32 [N]
  Tensor history_;                    // f32 [N, steps]
  std::vector<Param> names_;
  std::vector<Part> parts_;
};

// Checkpoint names of the two tensors that belong to a parameter.
std::string amax_history_name(const std::string& param);
std::string amax_used_name(const std::string& param);

}  // namespace bev
