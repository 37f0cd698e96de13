// A training step as its caller sees it: what goes in, and what comes out.
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

class Moment;

// This rank's micro-batches of a global batch, and the global batch's size.
struct StepBatch {
  std::vector<MicroBatch> micro_batches;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  double squared_lengths = 0;  // sum over its sequences
};

struct StepInput {
  std::int64_t iteration = 0;
  LearningRates lr;
  double weight_decay = 0;
  double loss_scale = 1;
  double clip_grad = 0;  // 0: no clipping
};

struct StepResult {
  double loss = 0;       // the objective's first term: its mean over the global batch
  double tokens = 0;     // the term's weight: tokens of the global batch, of a next-token loss
  double grad_norm = 0;  // before clipping, unscaled
  bool finite = true;    // loss and gradient; otherwise nothing was updated
  bool redone = false;   // what was exchanged did not fit at first
  std::vector<RouterLoad> routers = {};  // of a training step, layer by layer
  // All that a training step tells, these numbers among it: the objective's terms, each a mean over
  // its own weight, then the others. Valid until the engine finishes its next step.
  std::span<const Metric> metrics = {};
  std::shared_ptr<const Moment> end = nullptr;  // of a training step; null as `mark` is

  // The metric of this name; null: steps do not tell it.
  const Metric* metric(std::string_view name) const {
    for (const Metric& told : metrics) {
      if (told.name == name) return &told;
    }
    return nullptr;
  }
};

// A step that was begun: the one place where its batch is kept until it is finished.
struct StepInFlight {
  StepBatch batch;
  StepInput input;
};

}  // namespace bev
