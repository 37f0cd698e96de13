// Input and result of a training step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "autograd/metrics.h"
#include "ops/micro_batch.h"
#include "parallel/router_load.h"
#include "tensor/step_state.h"

namespace bev {

class DeviceTimestamp;

// This rank's micro-batches of a global batch, and the size of the global batch.
struct StepBatch {
  std::vector<MicroBatch> micro_batches;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  double squared_lengths = 0;  // sum over its sequences
};

struct StepInput {
  std::int64_t iteration = 0;
  LearningRates lr = {};
  double weight_decay = 0;
  double loss_scale = 1;
  double clip_grad = 0;  // 0: no clipping
};

struct StepResult {
  double loss = 0;       // mean of the objective's first term over the global batch
  double tokens = 0;     // weight of that term: for next-token loss, tokens of the global batch
  double grad_norm = 0;  // before gradient clipping, unscaled
  bool finite = true;    // loss and gradient are finite; otherwise nothing was updated
  bool redone = false;   // a fixed-size all-to-all had overflowed, and the step was repeated
  std::vector<RouterLoad> routers = {};  // of a training step, by layer
  // All metrics of a training step, including the values above: the terms of the objective, each a
  // mean over its own weight, then the others. Valid until the engine finishes its next step.
  std::span<const Metric> metrics = {};
  std::shared_ptr<const DeviceTimestamp> end = nullptr;  // device time after the step; null on CPU

  // The metric of this name, or null if steps do not report it.
  const Metric* metric(std::string_view name) const {
    for (const Metric& told : metrics) {
      if (told.name == name) return &told;
    }
    return nullptr;
  }
};

// A step that was begun; it owns its batch until it is finished.
struct StepInFlight {
  StepBatch batch;
  StepInput input;
};

}  // namespace bev
