// Where moments and main parameters lie: those of some ranges on the device, of the others in host
// memory, each kind as one tensor. Scales of moments in 8 bits are always on the device: they are
// few, and one alone costs the bus as much as the rest of its block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/context.h"
#include "optim/config.h"

namespace bev {

// A moment of a range; in 8 bits it has scales.
struct MomentState {
  View values, scales;
};
// What a range has beside its values. main is empty where the model's own serve, being in that
// dtype; v is empty but for Adam.
struct RangeState {
  View main;
  MomentState m, v;
};

// Whether moments and a main parameter are kept for it; what moves by a sign needs none.
inline bool has_state(const Param& param) { return param.sign_rate == 0; }

// For ranges of these sizes: whether the state of each lies in host memory. A range is never cut,
// and each choice keeps the part so far as close to the fraction as it can.
std::vector<bool> choose_offloaded(std::span<const std::int64_t> sizes, double fraction);

// Of the ranges in one memory.
struct StateSize {
  std::int64_t elements = 0, blocks = 0;  // blocks of moments in 8 bits

  void add(std::int64_t range_elements);
};
// The tensors that hold the state of so many: dtype and elements. A memory without ranges has none.
struct StateTensors {
  struct Flat {
    Dtype dtype = Dtype::kF32;
    std::int64_t elements = 0;  // 0: there is no such tensor
  };
  Flat main, m, m_scales, v, v_scales;

  StateTensors(const OptimConfig& config, Dtype model, const StateSize& size);
  std::vector<Flat> numbers() const { return {main, m, v}; }
  std::vector<Flat> scales() const { return {m_scales, v_scales}; }
};

class StateMemory {
 public:
  StateMemory() = default;
  // Moments are 0.
  StateMemory(Context& ctx, Arena& arena, const StateTensors& tensors);

  // The state of the next so many elements.
  RangeState take(std::int64_t elements);

 private:
  Tensor main_, m_, m_scales_, v_, v_scales_;
  StateSize taken_;
};

}  // namespace bev
