#include "parallel/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/philox.h"

namespace bev {

namespace {
// Sets a value and puts the old one back, also when an exception passes.
template <class T>
class ScopedValue {
 public:
  ScopedValue(T& place, T value) : place_(place), before_(std::exchange(place, value)) {}
  ~ScopedValue() { place_ = before_; }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;

 private:
  T& place_;
  T before_;
};
}  // namespace

MeshShape mesh_shape(const ParallelConfig& config) {
  MeshShape shape;
  shape.tp = config.tensor_model_parallel_size;
  shape.cp = config.context_parallel_size;
  shape.dp = std::max<std::int64_t>(config.data_parallel_size, 1);
  shape.pp = config.pipeline_model_parallel_size;
  shape.ep = config.expert_model_parallel_size;
  shape.etp =
      config.expert_tensor_parallel_size > 0 ? config.expert_tensor_parallel_size : shape.tp;
  shape.dp_outermost = config.use_tp_pp_dp_mapping;
  shape.dp_instances = config.num_distributed_optimizer_instances;
  if (!config.hierarchical_context_parallel_sizes.empty()) {
    shape.cp_inner = config.hierarchical_context_parallel_sizes.front();
  }
  return shape;
}

MeshShape mesh_shape(const ParallelConfig& config, const ModelConfig& model) {
  MeshShape shape = mesh_shape(config);
  if (shape.tp > model.kv_heads()) shape.kv_share = shape.tp / model.kv_heads();
  return shape;
}

BuildOptions build_options(const ParallelConfig& config) {
  BuildOptions build;
  build.sequence_parallel = config.sequence_parallel && config.tensor_model_parallel_size > 1;
  RecomputePolicy& policy = build.recompute;
  if (config.recompute_granularity == RecomputeGranularity::kFull) {
    bool block = config.recompute_method == RecomputeMethod::kBlock;
    policy.layers_per_unit = block ? 1 : std::max<std::int64_t>(config.recompute_num_layers, 1);
    policy.full_layers = block ? config.recompute_num_layers : -1;
  }
  if (config.recompute_granularity == RecomputeGranularity::kSelective) {
    for (const std::string& part : config.recompute_modules) {
      policy.core_attention |= part == "core_attn";
      policy.norms |= part == "layernorm";
      policy.activations |= part == "activation";
      policy.mlp |= part == "mlp";
    }
  }
  return build;
}

Engine::Engine(World& world, const Kernels& kernels, const EngineOptions& options)
    : options_(options), pool_(options.threads), arena_(make_host_memory()) {
  mesh_ = std::make_unique<Mesh>(world, mesh_shape(options.parallel, options.model));
  StageRange range = even_stage(options.model.num_layers, mesh_->shape().pp, mesh_->at().pp);
  model_ = std::make_unique<Decoder>(options.model, range, build_options(options.parallel));
  StoreOptions store;
  store.dtype = options.dtype;
  store.grad_dtype = wide_of(options.dtype);
  store.strategy = options.parallel.data_parallel_sharding_strategy;
  store.gradients = options.gradients;
  Stream stream{&pool_, nullptr};
  store_ = std::make_unique<ParamStore>(model_->params(), *mesh_, arena_, kernels, stream, store);
  store_->initialise(options.seed);
  ctx_ = std::unique_ptr<Context>(
      new Context{kernels, stream, arena_, *mesh_, *store_, *store_, &step_, options.dtype});
  if (options.gradients && options.optimizer) {
    optimizer_ = std::make_unique<Optimizer>(*ctx_, store_->optim_ranges(), options.optim);
  }
  executor_ = std::make_unique<Executor>(*ctx_, *model_);
}

Engine::~Engine() = default;

Schedule Engine::schedule(std::size_t micro_batches, bool with_backward) const {
  auto count = static_cast<std::int64_t>(micro_batches);
  return with_backward ? schedule_1f1b(mesh_->shape().pp, mesh_->at().pp, count)
                       : schedule_forward(mesh_->shape().pp, mesh_->at().pp, count);
}

void Engine::set_loss_factor(std::span<const MicroBatch> batches, double loss_scale) {
  Tensor tokens = ctx_->allocate(Dtype::kF64, {1}, "loss");
  double& sum = *tokens.as<double>();
  sum = 0;
  for (const MicroBatch& batch : batches) {
    const float* weights = batch.targets.weights.as<float>();
    for (std::int64_t t = 0; t < batch.layout.tokens; ++t) sum += weights[t];
  }
  mesh_->grads().all_reduce(tokens, Reduction::kSum, "tokens").wait();
  step_.loss_factor = sum > 0 ? loss_scale / sum : 0;
}

void Engine::sum_losses(std::span<const MicroBatch> batches,
                        const std::vector<Tensor>& token_losses, StepResult& result) {
  Tensor sums = ctx_->allocate(Dtype::kF64, {2}, "loss");
  double* sum = sums.as<double>();
  sum[0] = sum[1] = 0;
  if (model_->range().last && mesh_->tp().rank() == 0) {
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const float* weights = batches[i].targets.weights.as<float>();
      visit_float(token_losses[i].dtype(), [&](auto zero) {
        const auto* losses = token_losses[i].as<decltype(zero)>();
        for (std::int64_t t = 0; t < batches[i].layout.tokens; ++t) {
          sum[0] += static_cast<double>(weights[t]) * static_cast<double>(losses[t]);
          sum[1] += weights[t];
        }
      });
    }
  }
  mesh_->world().all_reduce(sums, Reduction::kSum, "loss").wait();
  result.tokens = sum[1];
  result.loss = sum[1] > 0 ? sum[0] / sum[1] : 0;
}

StepResult Engine::forward_backward(std::span<const MicroBatch> batches, const StepInput& input) {
  step_.iteration = input.iteration;
  mesh_->activity().set_step(input.iteration);
  step_.random_key = mix_bits(options_.seed, static_cast<std::uint64_t>(input.iteration));
  store_->begin_step();
  set_loss_factor(batches, input.loss_scale);
  std::vector<Tensor> token_losses;
  {
    ScopedValue training(ctx_->training, true);
    token_losses = executor_->run(schedule(batches.size(), true), batches, true);
  }
  store_->finish_gradients();
  StepResult result;
  sum_losses(batches, token_losses, result);
  return result;
}

StepResult Engine::gradients(std::span<const MicroBatch> batches, const StepInput& input) {
  StepResult result = forward_backward(batches, input);
  result.grad_norm = std::sqrt(store_->gradient_square_sum()) / input.loss_scale;
  result.finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  return result;
}

StepResult Engine::train_step(std::span<const MicroBatch> batches, const StepInput& input) {
  StepResult result = gradients(batches, input);
  double clip =
      input.clip_grad > 0 ? std::min(1.0, input.clip_grad / (result.grad_norm + 1e-6)) : 1.0;
  step_.lr = input.lr;
  step_.weight_decay = input.weight_decay;
  step_.grad_multiplier = clip / input.loss_scale;
  step_.skip = result.finite ? 0 : 1;
  if (result.finite) ++step_.update;
  optimizer_->step(*ctx_);
  store_->gather_values();
  return result;
}

StepResult Engine::evaluate(std::span<const MicroBatch> batches) {
  StepResult result;
  std::vector<Tensor> token_losses =
      executor_->run(schedule(batches.size(), false), batches, false);
  sum_losses(batches, token_losses, result);
  result.finite = std::isfinite(result.loss);
  return result;
}

std::string Engine::find_nonfinite(std::span<const MicroBatch> batches, const StepInput& input) {
  FiniteProbe probe;
  ScopedValue watching(ctx_->probe, &probe);
  forward_backward(batches, input);
  probe.in_backward = true;
  for (const Param* param : store_->params()) {
    if (param->trains)
      ctx_->check("gradient sum", param->name, store_->local_gradient(*param).view);
  }
  // Each rank's finding as text of fixed length; the earliest in the order of computation counts:
  // forward before backward, first stage first in the forward, last stage first in the backward.
  constexpr std::int64_t kText = 256;
  Tensor mine = ctx_->allocate(Dtype::kU8, {kText}, "check");
  Tensor all = ctx_->allocate(Dtype::kU8, {kText * mesh_->world().size()}, "check");
  auto* text = mine.as<std::uint8_t>();
  std::memset(text, 0, kText);
  if (probe.found) {
    text[0] = probe.found_in_backward ? 2 : 1;
    std::memcpy(text + 1, probe.message.data(),
                std::min<std::size_t>(probe.message.size(), kText - 2));
  }
  mesh_->world().all_gather(mine, all, "check").wait();
  std::string first;
  std::int64_t best = 0;
  for (int rank = 0; rank < mesh_->world().size(); ++rank) {
    const std::uint8_t* found = all.as<std::uint8_t>() + rank * kText;
    if (found[0] == 0) continue;
    std::int64_t stage = coordinate_of(mesh_->shape(), rank).pp;
    std::int64_t stages = mesh_->shape().pp;
    std::int64_t order = found[0] == 1 ? 1 + stage : 1 + stages + (stages - 1 - stage);
    if (best != 0 && order >= best) continue;
    best = order;
    std::string message(reinterpret_cast<const char*>(found + 1));
    first = mesh_->world().size() > 1 ? concat("rank ", rank, ", ", message) : message;
  }
  return first;
}

}  // namespace bev
