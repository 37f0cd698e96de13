// Runs a model for a few steps under a layout on thread ranks and collects losses, gradients and
// weights under their global names, so that layouts can be compared with one rank: promise 3, for
// any configuration.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"
#include "kernels/kernels.h"
#include "parallel/engine.h"

namespace bev {

// Puts a world of its own between a rank and the others, to watch or to disturb what they exchange.
class WorldFilter {
 public:
  virtual ~WorldFilter() = default;
  // Called by every rank's thread with its world, which outlives the result.
  virtual std::unique_ptr<World> wrap(World& world) = 0;
};

// Sees the micro-batches of each step before the engine does, and may add fields to them, such as
// what another model of the rank says of them.
class BatchPreparation {
 public:
  virtual ~BatchPreparation() = default;
  virtual void prepare(std::span<MicroBatch> batches) = 0;
};

struct LayoutRun {
  EngineOptions engine;  // model, layout, precision, seed, threads of each rank
  std::int64_t steps = 3;
  std::int64_t micro_batch_size = 1;
  LearningRates lr = 1e-2;
  double weight_decay = 0.1, clip_grad = 1.0;
  double timeout_seconds = 60;
  WorldFilter* filter = nullptr;
  // Called by every rank with the model that is trained, which outlives the result; null: none.
  std::unique_ptr<BatchPreparation> (*preparation)(RankModel& trained) = nullptr;
};

using NamedTensors = std::map<std::string, std::vector<double>>;

struct LayoutAnswer {
  std::vector<double> losses, grad_norms, tokens;  // of each step
  // The other metrics, a number of each step: losses of depths, norms, routers layer by layer.
  NamedTensors reports;
  NamedTensors gradients;  // of the first step
  NamedTensors weights;    // after the last
};

// The global batch of a step, the same for every layout.
using StepSamples = std::vector<TokenSample>;

// One rank of it, whatever carries its messages; world rank 0 gets the answer. batches[i] is the
// global batch of step i. Error(kInternal) when ranks that should hold the same do not, to the bit:
// they would drift apart.
LayoutAnswer run_layout_rank(World& world, const LayoutRun& run, const Kernels& kernels,
                             const std::vector<StepSamples>& batches);
// All ranks of it, as threads.
LayoutAnswer run_layout(const LayoutRun& run, const Kernels& kernels,
                        const std::vector<StepSamples>& batches);

// Samples of `length` >= 1 tokens, with documents of unequal length and some ignored targets;
// deterministic.
StepSamples random_samples(std::int64_t vocab_size, std::int64_t count, std::int64_t length,
                           std::uint64_t seed);

// Largest difference of a tensor relative to the largest value of the expected one; names the
// worst. Infinite when tensors are missing or NaN. A tensor whose values all lie below `floor`
// times the largest of all tensors is judged against that: one that is zero in exact arithmetic
// (what attention to a single key gives its queries) holds nothing but rounding.
struct TensorDifference {
  double value = 0;
  std::string name;
};
TensorDifference largest_difference(const NamedTensors& expected, const NamedTensors& actual,
                                    double floor = 0);

}  // namespace bev
