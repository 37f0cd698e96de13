// Values that change from step to step. They live on the device: kernels take the address, never a
// host copy, so that a captured graph stays valid and a bad step is predicated away without a host
// wait.
#pragma once

#include <cstdint>

namespace bev {

struct StepState {
  std::uint64_t random_key = 0;  // of seed and iteration
  std::int64_t iteration = 0;
  std::int64_t update = 0;  // optimizer updates so far, counting this one (bias correction)
  double lr = 0;
  double weight_decay = 0;
  double loss_factor = 0;      // loss scale over the tokens of the global batch
  double grad_multiplier = 1;  // unscale and clip, applied by the optimizer
  std::int32_t skip = 0;       // not 0: the optimizer leaves everything as it is
};

}  // namespace bev
