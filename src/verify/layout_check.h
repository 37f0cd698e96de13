// Layout equivalence check: trains a model for a few steps under a layout and collects losses,
// gradients and weights under their global names, to compare any layout with a single rank.
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

// Wraps the world of each rank, to observe or disturb its communication.
class WorldFilter {
 public:
  virtual ~WorldFilter() = default;
  // Called by the thread of every rank with its world, which outlives the result.
  virtual std::unique_ptr<World> wrap(World& world) = 0;
};

struct LayoutRun {
  EngineOptions engine;  // model, layout, precision, seed, threads per rank
  std::int64_t steps = 3;
  std::int64_t micro_batch_size = 1;
  LearningRates lr = 1e-2;
  double weight_decay = 0.1, clip_grad = 1.0;
  double timeout_seconds = 60;
  WorldFilter* filter = nullptr;
  // Called by every rank with the trained model, which outlives the result; null: none.
  std::unique_ptr<BatchPreparation> (*preparation)(RankModel& trained) = nullptr;
};

using NamedTensors = std::map<std::string, std::vector<double>>;

struct LayoutAnswer {
  std::vector<double> losses, grad_norms, tokens;  // of each step
  // The other metrics, a number of each step: losses of depths, norms, routers layer by layer.
  NamedTensors reports;
  NamedTensors gradients;  // of the first step
  NamedTensors weights;    // after the last step
};

// The global batch of a step, the same for every layout.
using StepSamples = std::vector<TokenSample>;

// Runs one rank over any transport; world rank 0 gets the answer. batches[i] is the global batch of
// step i. Throws Error(kInternal) if ranks that should hold the same values are not bitwise equal:
// they would drift apart.
LayoutAnswer run_layout_rank(World& world, const LayoutRun& run, const Kernels& kernels,
                             const std::vector<StepSamples>& batches);
// Runs all ranks as threads.
LayoutAnswer run_layout(const LayoutRun& run, const Kernels& kernels,
                        const std::vector<StepSamples>& batches);

// Deterministic samples of `length` >= 1 tokens, with documents of unequal length and some ignored
// targets.
StepSamples random_samples(std::int64_t vocab_size, std::int64_t count, std::int64_t length,
                           std::uint64_t seed);

// Largest difference of a tensor relative to the largest value of the expected one, with the name
// of the worst tensor. Infinite if tensors are missing or NaN. A tensor whose values are all below
// `floor` times the largest of all tensors is compared with that instead: a gradient that is zero
// in exact arithmetic (e.g. of queries that see a single key) consists of rounding errors only.
struct TensorDifference {
  double value = 0;
  std::string name;
};
TensorDifference largest_difference(const NamedTensors& expected, const NamedTensors& actual,
                                    double floor = 0);

}  // namespace bev
