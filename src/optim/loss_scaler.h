// The factor on the loss that keeps fp16 gradients in range: constant, or adapted to overflows.
// Rules are Megatron's, with growth 2 and backoff 1/2.
#pragma once

#include <cstdint>

namespace bev {

struct DynamicLossScale {
  double initial = 4294967296.0;  // 2^32
  double min = 1.0;
  std::int64_t window = 1000;   // steps without overflow before the scale doubles
  std::int64_t hysteresis = 2;  // overflows before the scale halves
};

class LossScaler {
 public:
  // What a checkpoint keeps.
  struct State {
    double scale = 1.0;
    std::int64_t growth_counter = 0;
    std::int64_t hysteresis_counter = 0;
    bool operator==(const State&) const = default;
  };

  static LossScaler constant(double scale);
  static LossScaler dynamic(const DynamicLossScale& rules);

  double scale() const { return state_.scale; }
  // 1/scale, computed in double, as gradients are multiplied by it.
  float inverse_scale() const { return static_cast<float>(1.0 / state_.scale); }
  bool is_dynamic() const { return dynamic_; }

  // Call once per step. Returns whether the scale changed. A step with found_inf must be skipped by
  // the caller, also under a constant scale.
  bool update(bool found_inf);

  const State& state() const { return state_; }
  void restore(const State& state);

 private:
  LossScaler() = default;
  bool dynamic_ = false;
  DynamicLossScale rules_;
  State state_;
};

}  // namespace bev
