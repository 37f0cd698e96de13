// Loss scaling, which keeps fp16 gradients in range: constant, or dynamic by overflows. Rules are
// Megatron's, with growth factor 2 and backoff factor 1/2.
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
  // State saved in checkpoints.
  struct State {
    double scale = 1.0;
    std::int64_t growth_counter = 0;
    std::int64_t hysteresis_counter = 0;
    bool operator==(const State&) const = default;
  };

  static LossScaler constant(double scale);
  static LossScaler dynamic(const DynamicLossScale& rules);

  double scale() const { return state_.scale; }
  // 1/scale, computed in double; gradients are multiplied by it.
  float inverse_scale() const { return static_cast<float>(1.0 / state_.scale); }
  bool is_dynamic() const { return dynamic_; }

  // Called once per step. Returns true if the scale changed. The caller must skip a step with
  // found_inf, even with a constant scale.
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
