// Values that change from step to step. They live on the device: kernels take the address, never a
// host copy, so that a captured graph stays valid and a bad step is predicated away without a host
// wait.
#pragma once

#include <cstdint>

namespace bev {

// What the host sets before a step.
struct StepInputs {
  std::uint64_t random_key = 0;  // of seed and iteration
  std::int64_t iteration = 0;
  double lr = 0;
  double weight_decay = 0;
  double loss_scale = 1;
  double loss_factor = 0;  // loss scale over the tokens of the global batch
};

// And what the device finds out.
struct StepState : StepInputs {
  std::int64_t update = 0;     // optimizer updates so far, counting this one (bias correction)
  double grad_multiplier = 1;  // unscale and clip, applied by the optimizer
  std::int32_t skip = 0;       // not 0: the optimizer leaves everything as it is
  std::int32_t failed = 0;  // not 0: a step was not finite. All are skipped until the host, which
                            // may have started more by then, has seen it and sets it back.
};

}  // namespace bev
