// Memory of the optimizer state of elements (moments and master weights): some ranges on the
// device, the others offloaded to host memory, each kind as one tensor. Scales of 8-bit moments are
// always on the device: they are few, and transferring one costs the bus as much as the rest of its
// block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/context.h"
#include "optim/config.h"

namespace bev {

// One moment of a range; 8-bit moments have scales.
struct MomentState {
  View values, scales;
};
// Moments of elements that an optimizer keeps, by their names in checkpoints; null: none.
struct MomentNames {
  const char *first = nullptr, *second = nullptr;
};
MomentNames moment_names(OptimizerKind kind);

// Optimizer state of a range. main is empty if the weights of the model are in that dtype and serve
// as master weights; m and v are empty if the range's optimizer keeps none.
struct RangeState {
  View main;
  MomentState m, v;
};

// True if a parameter has moments and a master weight; sign updates (expert bias) need none.
inline bool has_state(const Param& param) { return param.sign_rate == 0; }

// Decides for ranges of these sizes which states are offloaded to the host. A range is never split,
// and each decision keeps the offloaded part so far as close to the fraction as possible.
std::vector<bool> choose_offloaded(std::span<const std::int64_t> sizes, double fraction);

// Size of the ranges in one memory: elements, and blocks of 8-bit moments.
struct StateSize {
  struct Part {
    std::int64_t elements = 0, blocks = 0;
  };
  Part main, m, v;

  void add(std::int64_t range_elements, OptimizerKind kind);
};
// Dtype and elements of the tensors that hold the state of `size`. Without ranges there are none.
struct StateTensors {
  struct Flat {
    Dtype dtype = Dtype::kF32;
    std::int64_t elements = 0;  // 0: no such tensor
  };
  Flat main, m, m_scales, v, v_scales;

  StateTensors(const OptimConfig& config, Dtype model, const StateSize& size);
  std::vector<Flat> numbers() const { return {main, m, v}; }
  std::vector<Flat> scales() const { return {m_scales, v_scales}; }
};

class StateMemory {
 public:
  StateMemory() = default;
  // Moments are initialised to 0.
  StateMemory(Context& ctx, Arena& arena, const StateTensors& tensors);

  // State of the next `elements` elements, which an optimizer of this kind updates.
  RangeState take(std::int64_t elements, OptimizerKind kind);

 private:
  Tensor main_, m_, m_scales_, v_, v_scales_;
  StateSize taken_;
};

}  // namespace bev
