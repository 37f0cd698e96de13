// Delayed scaling: the largest numbers of every tensor of the FP8 layers of this rank's stages,
// step by step, in device memory. A tensor is whole here: each step's number is the largest over
// all micro-batches and over all ranks that hold a part of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/param.h"
#include "parallel/shard_plan.h"

namespace bev {

class AmaxHistory {
 public:
  // Of those parameters whose recipe needs it.
  AmaxHistory(const std::vector<Param*>& params, const StoreTools& tools);

  AmaxSlot slot(const Param& param, Fp8Role role) const;
  void begin_step();
  // After the optimizer has decided about the step. Collective over tp, dp and cp.
  void finish_step(const StepState* state);

  // What a checkpoint holds of it, under names and shapes that no layout changes.
  struct Part {
    const Param* name_and_shape = nullptr;
    View memory;  // flat
  };
  const std::vector<Part>& parts() const { return parts_; }

 private:
  const StoreTools& tools_;
  std::vector<std::int64_t> places_;  // by index of the parameter; -1: none
  Tensor seen_, used_;                // f32 [N]
  Tensor history_;                    // f32 [N, steps]
  std::vector<Param> names_;
  std::vector<Part> parts_;
};

// The names of the two tensors of a parameter in a checkpoint.
std::string amax_history_name(const std::string& param);
std::string amax_used_name(const std::string& param);

}  // namespace bev
