#include "tests/support/layouts.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "backend/cpu/cpu_kernels.h"
#include "base/philox.h"
#include "comm/world.h"
#include "parallel/engine.h"

namespace bev::test {

ModelConfig tiny_gpt() {
  ModelConfig model;
  model.family = "gpt2";
  model.num_layers = 4;
  model.hidden_size = 24;
  model.num_attention_heads = 4;
  model.ffn_hidden_size = 40;
  model.vocab_size = 61;
  model.max_position_embeddings = 32;
  model.activation = ActivationKind::kGeluTanh;
  model.init_method_std = 0.2;
  return model;
}

ModelConfig tiny_llama() {
  ModelConfig model;
  model.family = "llama";
  model.num_layers = 4;
  model.hidden_size = 20;
  model.num_attention_heads = 6;
  model.num_query_groups = 2;
  model.kv_channels = 6;
  model.ffn_hidden_size = 28;
  model.vocab_size = 53;
  model.max_position_embeddings = 32;
  model.position_embedding_type = PositionKind::kRope;
  model.normalization = NormKind::kRmsNorm;
  model.activation = ActivationKind::kSilu;
  model.gated = true;
  model.add_bias_linear = false;
  model.untie_embeddings_and_output_weights = true;
  model.init_method_std = 0.2;
  return model;
}

std::vector<TokenSample> random_samples(const ModelConfig& model, std::int64_t count,
                                        std::int64_t length, std::uint64_t seed) {
  std::vector<TokenSample> samples;
  for (std::int64_t s = 0; s < count; ++s) {
    auto draw = [&](std::int64_t i, std::uint32_t use) {
      return philox({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(s), use, 0},
                    seed)[0];
    };
    std::vector<std::int32_t> tokens;
    for (std::int64_t t = 0; t <= length; ++t) {
      tokens.push_back(
          static_cast<std::int32_t>(draw(t, 0) % static_cast<std::uint32_t>(model.vocab_size)));
    }
    TokenSample sample = window_sample(tokens);
    auto cut = static_cast<std::int32_t>(1 + draw(0, 1) % static_cast<std::uint32_t>(length - 1));
    sample.documents = {cut, static_cast<std::int32_t>(length) - cut};
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
  global.resize(static_cast<std::size_t>(param.shape.numel()), std::nan(""));
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

LayoutOutcome run_layout(const LayoutRun& run) {
  ParallelConfig parallel = run.parallel;
  parallel.data_parallel_size = std::max<std::int64_t>(parallel.data_parallel_size, 1);
  auto ranks = static_cast<int>(mesh_shape(parallel).size());
  LayoutOutcome outcome;
  std::mutex mutex;
  run_thread_ranks(ranks, {60.0}, [&](World& world) {
    EngineOptions options;
    options.model = run.model;
    options.parallel = parallel;
    options.dtype = run.dtype;
    options.threads = static_cast<int>(run.threads);
    Engine engine(world, cpu_kernels(), options);
    for (std::int64_t step = 0; step < run.steps; ++step) {
      std::vector<TokenSample> samples =
          random_samples(run.model, run.global_batch_size, run.sequence_length,
                         77 + static_cast<std::uint64_t>(step));
      std::vector<MicroBatch> batches =
          rank_micro_batches(engine.ctx(), samples, run.micro_batch_size);
      StepResult result = engine.train_step(batches, {step + 1, 1e-2, 0.1, 1.0, 1.0});
      if (world.rank() == 0) {
        outcome.losses.push_back(result.loss);
        outcome.grad_norms.push_back(result.grad_norm);
      }
      for (const Param* param : engine.store().params()) {
        // Both are collective when sharded, so every rank takes part; holders write equal values.
        WeightLease gradient = engine.store().local_gradient(*param);
        WeightLease value = engine.store().local_value(*param);
        std::lock_guard lock(mutex);
        if (step == 0) place(*param, engine.mesh(), gradient.view, outcome.gradients[param->name]);
        if (step + 1 == run.steps)
          place(*param, engine.mesh(), value.view, outcome.weights[param->name]);
      }
    }
  });
  return outcome;
}

Difference largest_difference(const std::map<std::string, std::vector<double>>& expected,
                              const std::map<std::string, std::vector<double>>& actual) {
  Difference worst;
  for (const auto& [name, values] : expected) {
    auto other = actual.find(name);
    if (other == actual.end() || other->second.size() != values.size()) {
      return {std::numeric_limits<double>::infinity(), name + " (missing or of another size)"};
    }
    double scale = 0, difference = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      scale = std::max(scale, std::abs(values[i]));
      double d = std::abs(values[i] - other->second[i]);
      difference =
          std::isnan(d) ? std::numeric_limits<double>::infinity() : std::max(difference, d);
    }
    double relative = scale > 0 ? difference / scale : difference;
    if (relative > worst.value) worst = {relative, name};
  }
  if (actual.size() != expected.size()) {
    return {std::numeric_limits<double>::infinity(), "(number of tensors)"};
  }
  return worst;
}

}  // namespace bev::test
