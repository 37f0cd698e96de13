// verify: the configuration under each layout against one rank: loss, gradients, weights after a
// few steps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "app/commands.h"
#include "app/layouts.h"
#include "app/ranks.h"
#include "base/error.h"
#include "bridge/hf_model.h"
#include "models/family.h"
#include "train/layout_check.h"

namespace bev {

namespace {

struct Tolerance {
  double gradients = 0;
  double weights = 0;  // infinite: not compared
};

// Relative to each tensor's largest value. Under rounding Adam turns noise in a gradient that
// should be zero into whole steps, so weights are compared in f64 only.
Tolerance default_tolerance(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return {1e-11, 1e-9};
    case Dtype::kF32:
      return {2e-5, INFINITY};
    default:
      return {5e-2, INFINITY};
  }
}

// The same kind of model, small: what a layout can get wrong does not depend on size.
ModelConfig scaled_down(const ModelConfig& model, const std::vector<ParallelConfig>& layouts) {
  std::int64_t tp = 1, pp = 1;
  for (const ParallelConfig& layout : layouts) {
    tp = std::lcm(tp, layout.tensor_model_parallel_size);
    pp = std::max(pp, layout.pipeline_model_parallel_size);
  }
  ModelConfig small = model;
  small.num_layers = std::min(model.num_layers, std::max<std::int64_t>(pp, 4));
  std::int64_t per_group = model.num_attention_heads / model.kv_heads();
  small.num_query_groups = std::min(model.kv_heads(), std::max<std::int64_t>(tp, 2));
  small.num_attention_heads = small.num_query_groups * std::min<std::int64_t>(per_group, 3);
  small.kv_channels = std::min<std::int64_t>(model.head_size(), 8);
  small.hidden_size = std::min<std::int64_t>(model.hidden_size, 36);
  small.ffn_hidden_size = std::min((model.ffn_size() + tp - 1) / tp, std::int64_t{12}) * tp;
  small.vocab_size = std::min<std::int64_t>(model.vocab_size, 131);
  small.max_position_embeddings = std::min<std::int64_t>(model.max_position_embeddings, 64);
  if (small.window_size > 0) small.window_size = std::min<std::int64_t>(model.window_size, 5);
  if (!small.window_layers.empty())
    small.window_layers.resize(static_cast<std::size_t>(small.num_layers));
  small.softmax_scale = 0;
  small.rope_scaling = {};
  small.init_method_std = 0.2;
  return small;
}

struct VerifyPlan {
  LayoutRun single;
  std::vector<StepSamples> batches;
  std::vector<ParallelConfig> layouts;
  Tolerance tolerance;
};

VerifyPlan make_plan(const CommandConfig& config) {
  const RunConfig& run = config.run;
  VerifyPlan plan;
  plan.layouts = config.verify.all > 0 ? all_layouts(config.verify.all, run.model, run.parallel)
                                       : parse_layouts(config.verify.layouts, run.parallel);
  EngineOptions& engine = plan.single.engine;
  engine.model = config.verify.full_size ? run.model : scaled_down(run.model, plan.layouts);
  engine.parallel = parse_layouts("tp1", run.parallel).front();
  engine.optim = run.optim;
  engine.seed = static_cast<std::uint64_t>(run.runtime.seed);
  bool chosen = run.precision.bf16 || run.precision.fp16 || config.verify.fp32;
  engine.dtype = chosen ? run.precision.model_dtype() : Dtype::kF64;
  plan.tolerance = default_tolerance(engine.dtype);
  if (config.verify.tolerance > 0) plan.tolerance.gradients = config.verify.tolerance;
  plan.single.steps = config.verify.steps;
  plan.single.timeout_seconds = run.parallel.distributed_timeout_minutes * 60;

  std::int64_t samples = 4,
               length = std::min<std::int64_t>(config.verify.full_size ? run.data.seq_length : 13,
                                               engine.model.max_position_embeddings);
  for (const ParallelConfig& layout : plan.layouts)
    samples = std::lcm(samples, layout.data_parallel_size);
  for (std::int64_t step = 0; step < plan.single.steps; ++step) {
    plan.batches.push_back(random_samples(engine.model.vocab_size, samples, length,
                                          static_cast<std::uint64_t>(run.runtime.seed + step)));
  }
  return plan;
}

// One row of the table; whether the layout gives the same answer.
bool print_row(const std::string& name, const LayoutAnswer& expected, const LayoutAnswer& actual,
               const Tolerance& tolerance) {
  TensorDifference gradient = largest_difference(expected.gradients, actual.gradients);
  TensorDifference weight = largest_difference(expected.weights, actual.weights);
  double loss = std::abs(actual.losses.front() / expected.losses.front() - 1);
  bool same = loss <= tolerance.gradients && gradient.value <= tolerance.gradients &&
              weight.value <= tolerance.weights;
  std::puts(fmt::format("{:<24} {:>14.10f} {:>14.10f} {:>9.1e} {:>9.1e}  {}{}", name,
                        actual.losses.front(), actual.grad_norms.front(), gradient.value,
                        weight.value, same ? "same" : "DIFFERS",
                        same ? std::string() : concat(" (gradient of ", gradient.name, ")"))
                .c_str());
  std::fflush(stdout);
  return same;
}

}  // namespace

int run_verify(CommandConfig& config, const FieldList& fields, Options& options) {
  RunConfig& run = config.run;
  choose_model(run, fields, options);
  run.train.dry_run = true;  // neither data nor a length is needed
  options.add_problems(run.resolve());
  options.throw_problems();
  VerifyPlan plan = make_plan(config);
  const Kernels& kernels = device_kernels(run.runtime);
  std::puts(fmt::format(
                "{} layers, hidden {}, {} heads ({} kv), vocabulary {}, {}; {} steps of {} samples",
                plan.single.engine.model.num_layers, plan.single.engine.model.hidden_size,
                plan.single.engine.model.num_attention_heads, plan.single.engine.model.kv_heads(),
                plan.single.engine.model.vocab_size, name_of(plan.single.engine.dtype),
                plan.single.steps, plan.batches.front().size())
                .c_str());
  std::puts("layout                             loss  gradient norm   gradient   weights");
  LayoutAnswer expected = run_layout(plan.single, kernels, plan.batches);
  print_row("1 rank", expected, expected, plan.tolerance);
  std::int64_t different = 0;
  for (const ParallelConfig& layout : plan.layouts) {
    LayoutRun other = plan.single;
    other.engine.parallel = layout;
    LayoutAnswer actual = run_layout(other, kernels, plan.batches);
    if (!print_row(layout_text(layout), expected, actual, plan.tolerance)) ++different;
  }
  std::puts(fmt::format("{} of {} layouts give one rank's answer",
                        plan.layouts.size() - static_cast<std::size_t>(different),
                        plan.layouts.size())
                .c_str());
  return different == 0 ? kExitOk : kExitMismatch;
}

}  // namespace bev
