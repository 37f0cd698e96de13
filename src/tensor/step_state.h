// Per-step values in device memory. Kernels take their address, never a host copy, so that a
// captured CUDA graph stays valid and a bad step is skipped on the device without a host
// synchronisation.
#pragma once

#include <cstdint>

namespace bev {

// Learning rates of a step. Parameter groups with a schedule of their own have one each
// (Param::lr_index); the first is that of all others.
struct LearningRates {
  static constexpr int kMost = 8;
  double values[kMost] = {};

  LearningRates() = default;
  // The same for every group.
  constexpr LearningRates(double lr) {
    for (double& value : values) value = lr;
  }
  bool operator==(const LearningRates&) const = default;
};

// Values that the host sets before a step.
struct StepInputs {
  std::uint64_t random_key = 0;  // derived from seed and iteration
  std::int64_t iteration = 0;
  LearningRates lr;
  double weight_decay = 0;
  double loss_scale = 1;
  double loss_factor = 0;  // loss scale / tokens of the global batch
};

// The inputs and the values that the device computes.
struct StepState : StepInputs {
  std::int64_t update = 0;     // optimizer updates so far, including this one (bias correction)
  double grad_multiplier = 1;  // unscaling and clipping factor, applied by the optimizer
  std::int32_t skip = 0;       // nonzero: the optimizer leaves everything unchanged
  std::int32_t failed = 0;  // nonzero: a step was not finite. All steps are skipped until the host,
                            // which may have enqueued more by then, has seen it and resets it.
};

}  // namespace bev
