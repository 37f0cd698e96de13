#include "train/layout_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>

#include "base/philox.h"
#include "comm/world.h"

namespace bev {

StepSamples random_samples(std::int64_t vocab_size, std::int64_t count, std::int64_t length,
                           std::uint64_t seed) {
  StepSamples samples;
  for (std::int64_t s = 0; s < count; ++s) {
    auto draw = [&](std::int64_t i, std::uint32_t use) {
      return philox({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(s), use, 0},
                    seed)[0];
    };
    std::vector<std::int32_t> tokens;
    for (std::int64_t t = 0; t <= length; ++t) {
      tokens.push_back(
          static_cast<std::int32_t>(draw(t, 0) % static_cast<std::uint32_t>(vocab_size)));
    }
    TokenSample sample = window_sample(tokens);
    if (length > 1) {
      auto cut = static_cast<std::int32_t>(1 + draw(0, 1) % static_cast<std::uint32_t>(length - 1));
      sample.documents = {cut, static_cast<std::int32_t>(length) - cut};
    }
    for (std::int64_t t = 0; t < length; ++t) {
      if (draw(t, 2) % 5 != 0) continue;
      sample.targets[static_cast<std::size_t>(t)] = -1;
      sample.weights[static_cast<std::size_t>(t)] = 0;
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

namespace {

// Puts a rank's part of a parameter into the global array.
void place(const Param& param, const Mesh& mesh, const View& local, std::vector<double>& global) {
  global.resize(static_cast<std::size_t>(param.shape.numel()),
                std::numeric_limits<double>::quiet_NaN());
  visit_float(local.dtype, [&](auto zero) {
    const auto* from = local.as<decltype(zero)>();
    for (const ElementRun& run :
         element_runs(param.shape, param.split, mesh.tp().size(), mesh.tp().rank())) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        global[static_cast<std::size_t>(run.global + i)] = static_cast<double>(from[run.local + i]);
      }
    }
  });
}

}  // namespace

LayoutAnswer run_layout(const LayoutRun& run, const Kernels& kernels,
                        const std::vector<StepSamples>& batches) {
  LayoutAnswer answer;
  std::mutex mutex;
  auto ranks = static_cast<int>(mesh_shape(run.engine.parallel).size());
  run_thread_ranks(ranks, {run.timeout_seconds}, [&](World& world) {
    Engine engine(world, kernels, run.engine);
    for (std::int64_t step = 0; step < run.steps; ++step) {
      std::vector<MicroBatch> micro_batches = rank_micro_batches(
          engine.ctx(), batches[static_cast<std::size_t>(step)], run.micro_batch_size);
      StepResult result = engine.train_step(
          micro_batches, {step + 1, run.lr, run.weight_decay, 1.0, run.clip_grad});
      if (world.rank() == 0) {
        answer.losses.push_back(result.loss);
        answer.grad_norms.push_back(result.grad_norm);
      }
      for (const Param* param : engine.store().params()) {
        // Both are collective when sharded, so every rank takes part; holders write equal values.
        WeightLease gradient = engine.store().local_gradient(*param);
        WeightLease value = engine.store().local_value(*param);
        std::lock_guard lock(mutex);
        if (step == 0) place(*param, engine.mesh(), gradient.view, answer.gradients[param->name]);
        if (step + 1 == run.steps) {
          place(*param, engine.mesh(), value.view, answer.weights[param->name]);
        }
      }
    }
  });
  return answer;
}

namespace {

double largest_value(const std::vector<double>& values) {
  double largest = 0;
  for (double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace

TensorDifference largest_difference(const NamedTensors& expected, const NamedTensors& actual) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kSmallestShare = 1e-3;
  double smallest_scale = 0;
  for (const auto& [name, values] : expected) {
    smallest_scale = std::max(smallest_scale, kSmallestShare * largest_value(values));
  }
  TensorDifference worst;
  for (const auto& [name, values] : expected) {
    auto other = actual.find(name);
    if (other == actual.end() || other->second.size() != values.size()) {
      return {kInfinity, name + " (missing or of another size)"};
    }
    double difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      double d = std::abs(values[i] - other->second[i]);
      difference = std::isnan(d) ? kInfinity : std::max(difference, d);
    }
    double scale = std::max(largest_value(values), smallest_scale);
    double relative = scale > 0 ? difference / scale : difference;
    if (relative > worst.value) worst = {relative, name};
  }
  if (actual.size() != expected.size()) return {kInfinity, "(number of tensors)"};
  return worst;
}

}  // namespace bev
