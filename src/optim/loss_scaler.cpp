#include "optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace bev {

namespace {
void check_scale(double scale) {
  BEV_CHECK(scale > 0 && std::isfinite(scale), ErrorKind::kConfig, "loss scale ", scale,
            " must be a number above 0");
}
}  // namespace

LossScaler LossScaler::constant(double scale) {
  check_scale(scale);
  LossScaler scaler;
  scaler.state_.scale = scale;
  return scaler;
}

LossScaler LossScaler::dynamic(const DynamicLossScale& rules) {
  check_scale(rules.initial);
  check_scale(rules.min);
  BEV_CHECK(rules.min <= rules.initial, ErrorKind::kConfig, "--min-loss-scale ", rules.min,
            " is above --initial-loss-scale ", rules.initial);
  BEV_CHECK(rules.window >= 1, ErrorKind::kConfig, "--loss-scale-window ", rules.window,
            " must be 1 or more");
  BEV_CHECK(rules.hysteresis >= 1, ErrorKind::kConfig, "--hysteresis ", rules.hysteresis,
            " must be 1 or more");
  LossScaler scaler;
  scaler.dynamic_ = true;
  scaler.rules_ = rules;
  scaler.state_ = {rules.initial, 0, rules.hysteresis};
  return scaler;
}

bool LossScaler::update(bool found_inf) {
  if (!dynamic_) return false;
  double before = state_.scale;
  if (found_inf) {
    state_.growth_counter = 0;
    // Only a growth resets this counter, so that later overflows halve the scale at once.
    --state_.hysteresis_counter;
    if (state_.hysteresis_counter <= 0) state_.scale = std::max(state_.scale * 0.5, rules_.min);
  } else if (++state_.growth_counter == rules_.window) {
    state_.growth_counter = 0;
    state_.hysteresis_counter = rules_.hysteresis;
    state_.scale *= 2.0;
  }
  return state_.scale != before;
}

void LossScaler::restore(const State& state) {
  check_scale(state.scale);
  if (dynamic_) state_ = state;  // a constant scale comes from the configuration
}

}  // namespace bev
