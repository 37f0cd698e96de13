// Runs a model for a few steps under a layout on thread ranks and collects losses, gradients and
// weights under their global names, so that layouts can be compared with one rank: promise 3, for
// any configuration.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/batch.h"
#include "kernels/kernels.h"
#include "parallel/engine.h"

namespace bev {

struct LayoutRun {
  EngineOptions engine;  // model, layout, precision, seed, threads of each rank
  std::int64_t steps = 3;
  std::int64_t micro_batch_size = 1;
  double lr = 1e-2, weight_decay = 0.1, clip_grad = 1.0;
  double timeout_seconds = 60;
};

using NamedTensors = std::map<std::string, std::vector<double>>;

struct LayoutAnswer {
  std::vector<double> losses, grad_norms;  // of each step
  NamedTensors gradients;                  // of the first step
  NamedTensors weights;                    // after the last
};

// The global batch of a step, the same for every layout.
using StepSamples = std::vector<TokenSample>;

// batches[i] is the global batch of step i.
LayoutAnswer run_layout(const LayoutRun& run, const Kernels& kernels,
                        const std::vector<StepSamples>& batches);

// Samples with documents of unequal length and some ignored targets; deterministic.
StepSamples random_samples(std::int64_t vocab_size, std::int64_t count, std::int64_t length,
                           std::uint64_t seed);

// Largest difference of a tensor relative to the largest value of the expected one, or to a
// thousandth of the largest of all where that is more, since a gradient that is zero but for
// rounding has no size of its own. Names the worst. Infinite when tensors are missing or NaN.
struct TensorDifference {
  double value = 0;
  std::string name;
};
TensorDifference largest_difference(const NamedTensors& expected, const NamedTensors& actual);

}  // namespace bev
