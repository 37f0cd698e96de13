#include "parallel/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/scoped_value.h"
#include "base/trace.h"
#include "comm/traced_group.h"
#include "kernels/device.h"
#include "kernels/optim.h"
#include "parallel/schedule_player.h"

namespace bev {

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
  shape.table_stages = pipeline_layout(model.num_layers, config).table_ranks(model);
  return shape;
}

namespace {
std::vector<ContextExchange> context_exchange(const ParallelConfig& config) {
  std::vector<ContextExchange> out;
  std::int64_t cp = config.context_parallel_size, inner = mesh_shape(config).cp_inner;
  for (const std::string& type : config.cp_comm_type) {
    bool both = type == "a2a+p2p";
    if (type == "allgather") {
      out.push_back(ContextExchange::kGather);
    } else if (type == "a2a" || (both && inner == cp)) {
      out.push_back(ContextExchange::kHeads);
    } else if (both && inner > 1) {
      out.push_back(ContextExchange::kHeadsAndRing);
    } else {
      out.push_back(ContextExchange::kRing);
    }
  }
  return out;
}
}  // namespace

BuildOptions build_options(const ParallelConfig& config) {
  BuildOptions build;
  build.tensor_parallel.sequence_parallel =
      config.sequence_parallel && config.tensor_model_parallel_size > 1;
  build.tensor_parallel.overlap = config.tp_comm_overlap;
  build.context = context_exchange(config);
  build.experts = {.dispatcher = config.moe_token_dispatcher,
                   .overlap_shared = config.moe_shared_expert_overlap,
                   .gives_way = config.overlap_moe_expert_parallel_comm,
                   .rank_capacity = config.moe_expert_rank_capacity_factor};
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
      policy.expert_activations |= part == "moe_act" || part == "activation";
      policy.experts |= part == "moe" || part == "mlp";
      policy.shared_experts |= part == "shared_experts";
      policy.latent_up |= part == "mla_up_proj";
    }
  }
  return build;
}

Stages build_stages(const ModelConfig& model, const ParallelConfig& parallel, const Fp8Config& fp8,
                    const PipelineLayout& layout, std::int64_t rank) {
  BuildOptions options = build_options(parallel);
  options.fp8 = fp8;
  options.shared_table = layout.table_ranks(model).size() > 1;
  Stages stages;
  Param* table = nullptr;
  for (std::int64_t chunk = 0; chunk < layout.shape.chunks; ++chunk) {
    const StageRange& range = layout.stage_at(rank, chunk);
    stages.push_back(std::make_unique<Decoder>(model, range, options, table));
    table = stages.back()->table();
  }
  return stages;
}

std::vector<Param*> params_of(const Stages& stages) {
  std::vector<Param*> params;
  for (const auto& stage : stages) {
    std::vector<Param*> more = stage->params();
    params.insert(params.end(), more.begin(), more.end());
  }
  return params;
}

std::unique_ptr<Executor> make_executor(Context& ctx, const PipelineLayout& layout,
                                        const Stages& stages, const ParallelConfig& parallel) {
  std::vector<const Decoder*> chunks;
  for (const auto& stage : stages) chunks.push_back(stage.get());
  return std::make_unique<Executor>(ctx, layout.shape, std::move(chunks),
                                    parallel.overlap_p2p_communication,
                                    parallel.delay_wgrad_compute, parallel.offload.policy());
}

Engine::Engine(World& world, const Kernels& kernels, const EngineOptions& options)
    : options_(options),
      pipeline_(pipeline_layout(options.model.num_layers, options.parallel)),
      device_(kernels.device.open(
          {options.threads, options.deterministic, options.cache_folder, options.local_rank})),
      arena_(device_->memory()),
      inputs_(device_->memory()),
      host_memory_(kernels.device.pinned_memory()),
      device_step_(arena_, Dtype::kU8, {sizeof(StepState)}, "step"),
      sums_(arena_, Dtype::kF64, {kStepSums + options.model.mtp_num_layers}, "step"),
      fixed_exchange_(options.parallel.moe_expert_rank_capacity_factor > 0 &&
                      options.parallel.expert_model_parallel_size > 1) {
  arena_.set_trace(options.trace);
  inputs_.set_trace(options.trace);
  TracedGroupMaker groups(*device_, options.trace);
  mesh_ = std::make_unique<Mesh>(world, mesh_shape(options.parallel, options.model), &groups);
  stages_ = build_stages(options.model, options.parallel, options.fp8, pipeline_, mesh_->at().pp);
  StoreOptions store =
      store_options(options.parallel, options.optim.dtypes, options.dtype, options.fp8);
  store.gradients = options.gradients;
  Stream stream = device_->stream();
  store_ = std::make_unique<ParamStore>(params_of(stages_), *mesh_, arena_, kernels, stream, store);
  store_->initialise(options.seed);
  ctx_ = std::unique_ptr<Context>(new Context{kernels, stream, arena_, inputs_, *mesh_, *store_,
                                              *store_, device_step(), options.dtype});
  ctx_->trace = options.trace;
  StepState fresh;
  kernels.device.upload(stream, &fresh, device_step_);
  if (options.gradients && options.optimizer) {
    optimizer_ =
        std::make_unique<Optimizer>(*ctx_, store_->optim_ranges(), options.optim, &host_memory_);
  }
  executor_ = make_executor(*ctx_, pipeline_, stages_, options.parallel);
  records_ = decide_recording();
  if (options.gradients) routers_ = router_statistics(*ctx_, options.model);
}

std::string Engine::unrecorded_because() const {
  if (offloaded() != nullptr) return "activations are offloaded";
  if (mesh_->world().size() == 1) return "";
  if (mesh_->shape().pp > 1) return "pipeline ranks meet at every message";
  if (pipeline_.shape.paired) return "micro-batches take turns";
  if (mesh_->shape().ep > 1 && !fixed_exchange_) {
    return "experts exchange exact sizes (--moe-expert-rank-capacity-factor fixes them)";
  }
  return mesh_->recordable() ? "" : "ranks share a GPU as threads";
}

bool Engine::decide_recording() {
  if (!options_.record_steps || !runs_ahead()) return false;
  std::string reason = unrecorded_because();
  if (!reason.empty() && options_.gradients && mesh_->world().rank() == 0) {
    log_info(concat(reason, ": steps are not recorded as graphs"));
  }
  return reason.empty();
}

StepState* Engine::device_step() const { return static_cast<StepState*>(device_step_.view().data); }

Engine::~Engine() = default;

bool Engine::runs_ahead() const { return ctx_->kernels.device.record != nullptr; }

const Decoder& Engine::stage() const {
  BEV_CHECK(stages_.size() == 1, ErrorKind::kInternal, "engine: ", stages_.size(),
            " stages on this rank");
  return *stages_.front();
}

const Decoder& Engine::head_stage() const {
  BEV_CHECK(pipeline_.holds_head(mesh_->at().pp), ErrorKind::kInternal, "engine: pipeline rank ",
            mesh_->at().pp, " has no head");
  return *stages_.back();
}

namespace {
// Lists of a user's are played before they are run, where a wrong one would hang.
std::vector<Schedule> training_schedules(const ScheduleMaker* own, const PipelineShape& shape,
                                         std::int64_t micro_batches) {
  if (own == nullptr) return make_schedules(shape, micro_batches);
  std::vector<Schedule> lists = own->make(shape, micro_batches);
  ScheduleReport report = play_schedules(shape, lists, micro_batches, true);
  BEV_CHECK(report.problem.empty(), ErrorKind::kConfig, "the schedule for ", micro_batches,
            " micro-batches: ", report.problem);
  return lists;
}
}  // namespace

const Schedule& Engine::schedule(std::size_t micro_batches, bool with_backward) {
  auto count = static_cast<std::int64_t>(micro_batches);
  auto [found, added] = schedules_.try_emplace({count, with_backward});
  if (added) {
    std::vector<Schedule> lists =
        with_backward ? training_schedules(options_.schedules, pipeline_.shape, count)
                      : make_forward_schedules(pipeline_.shape, count);
    found->second = std::move(lists[static_cast<std::size_t>(mesh_->at().pp)]);
  }
  return found->second;
}

void Engine::count_tokens(std::span<const MicroBatch> batches, BegunStep& step) {
  step.future_tokens.resize(static_cast<std::size_t>(options_.model.mtp_num_layers));
  for (const MicroBatch& batch : batches) {
    step.tokens += batch.targets.weight_sum;
    for (std::size_t depth = 0; depth < batch.future.size(); ++depth) {
      step.future_tokens[depth] += batch.future[depth].targets.weight_sum;
    }
  }
  Group& ranks = mesh_->grads().host();
  ranks.all_reduce({&step.tokens, Dtype::kF64, {1}}, Reduction::kSum, "tokens").wait();
  if (step.future_tokens.empty()) return;
  View future{step.future_tokens.data(), Dtype::kF64, {options_.model.mtp_num_layers}};
  ranks.all_reduce(future, Reduction::kSum, "tokens of depths").wait();
}

void Engine::send_inputs(std::span<const MicroBatch> batches, const StepInput& input,
                         BegunStep& step) {
  if (fixed_exchange_) step.batches.assign(batches.begin(), batches.end());
  step.input = input;
  mesh_->activity().set_step(input.iteration);
  count_tokens(batches, step);
  StepInputs inputs;
  inputs.iteration = input.iteration;
  inputs.random_key = mix_bits(options_.seed, static_cast<std::uint64_t>(input.iteration));
  inputs.loss_scale = input.loss_scale;
  inputs.loss_factor = step.tokens > 0 ? input.loss_scale / step.tokens : 0;
  inputs.lr = input.lr;
  inputs.weight_decay = input.weight_decay;
  // The rest of the state is the device's.
  ctx_->kernels.device.upload(ctx_->stream, &inputs, device_step_.rows(0, sizeof(StepInputs)));
}

void Engine::begin_sums() {
  ctx_->kernels.fill(ctx_->stream, sums_, 0);
  for (const Tensor* counted : {&routers_.sums, &routers_.global_counts}) {
    if (!counted->empty()) ctx_->kernels.fill(ctx_->stream, *counted, 0);
  }
}

void Engine::run_micro_batches(std::span<const MicroBatch> batches) {
  ScopedValue training(ctx_->training, true);
  const RouterStatistics* counted = routers_.sums.empty() ? nullptr : &routers_;
  ScopedValue routers(ctx_->routers, counted);
  ScopedValue lost(ctx_->lost_rows, fixed_exchange_ ? sum(kLostRows) : nullptr);
  executor_->run(schedule(batches.size(), true), batches, true, sum(kLoss));
}

void Engine::finish_sums() {
  mesh_->activity().set_action("gradient sums", -1);
  TraceScope span(ctx_->trace, {TraceKind::kOther, "gradient sums"});
  store_->finish_gradients();
  store_->add_gradient_squares(sum(kSquares));
  if (options_.zero_gradients) store_->count_zero_gradients(sum(kZeros));
  mesh_->world().all_reduce(sums_, Reduction::kSum, "loss and gradient norm").wait();
  if (routers_.sums.empty()) return;
  mesh_->world().all_reduce(routers_.sums, Reduction::kSum, "router statistics").wait();
}

void Engine::update(double clip_grad) {
  mesh_->activity().set_action("optimizer", -1);
  TraceScope span(ctx_->trace, {TraceKind::kOther, "optimizer"});
  ctx_->kernels.optim.clip(ctx_->stream,
                           {sum(kSquares), sum(kLoss), device_step(), clip_grad, sum(kLostRows)});
  store_->amaxes().finish_step(device_step());
  optimizer_->step(*ctx_);
  if (options_.params_norm) sum_param_squares();
}

void Engine::sum_param_squares() {
  optimizer_->add_squares(*ctx_, sum(kParamSquares));
  constexpr auto kAt = static_cast<std::int64_t>(kParamSquares);
  mesh_->world().all_reduce(sums_.rows(kAt, kAt + 1), Reduction::kSum, "parameter norm").wait();
}

void Engine::forward_backward(std::span<const MicroBatch> batches) {
  store_->begin_step(static_cast<std::int64_t>(batches.size()), sum(kSquares));
  begin_sums();
  run_micro_batches(batches);
  finish_sums();
}

class Engine::Parts final : public StepParts {
 public:
  Parts(Engine& engine, const StepShape& shape) : engine_(engine), shape_(shape) {}
  void first(const MicroBatch& batch) const override {
    if (engine_.store_->gathers_first()) engine_.store_->gather_values();
    engine_.store_->begin_step(shape_.kinds, engine_.sum(kSquares));
    engine_.begin_sums();
    next(batch);
  }
  void next(const MicroBatch& batch) const override {
    engine_.run_micro_batches({&batch, 1});
    engine_.store_->pause();
  }
  void end() const override {
    engine_.finish_sums();
    engine_.update(shape_.clip_grad);
    if (!engine_.store_->gathers_first()) engine_.store_->gather_values();
  }

 private:
  Engine& engine_;
  const StepShape& shape_;
};

// A step is recorded when its shape comes a second time in a row: by then its kernels have run, and
// shapes that never return are not worth it. Shapes are those of all ranks, so all find the same.
RecordedStep* Engine::find_recorded(std::span<const MicroBatch> batches, double clip_grad) {
  constexpr std::size_t kMost = 8;
  if (!records_) return nullptr;
  bool one_rank = mesh_->world().size() == 1;
  std::unique_ptr<StepShape> shape =
      can_record() ? shape_of(batches, clip_grad, one_rank) : nullptr;
  if (!agree_on_shape(mesh_->world().host(), shape.get())) return nullptr;
  for (const auto& recorded : recorded_) {
    if (recorded->shape() == *shape) return recorded.get();
  }
  bool again = last_shape_ && *last_shape_ == *shape;
  last_shape_ = std::move(shape);
  if (!again || recorded_.size() == kMost) return nullptr;
  Parts parts(*this, *last_shape_);
  recorded_.push_back(std::make_unique<RecordedStep>(*ctx_, *last_shape_, batches.front(), parts));
  if (mesh_->world().rank() == 0) {
    log_info(concat("steps of ", batches.size(), " micro-batches of ", last_shape_->tokens,
                    " tokens are recorded as graphs"));
  }
  return recorded_.back().get();
}

void Engine::begin_step(std::span<const MicroBatch> batches, const StepInput& input) {
  if (ended_.empty()) ended_.emplace_back();
  begun_.splice(begun_.end(), ended_, ended_.begin());
  BegunStep& step = begun_.back();
  step = BegunStep();
  send_inputs(batches, input, step);
  if (RecordedStep* recorded = find_recorded(batches, input.clip_grad)) {
    play_back(*recorded, batches, step);
  } else {
    forward_backward(batches);
    if (reader_ != nullptr) reader_->wait_read();
    update(input.clip_grad);
    store_->gather_values();
  }
  fetch_results(step);
}

// Hosts do not meet in its collectives. They meet once, after all of it is with the devices, and
// wait for a device only after that.
void Engine::play_back(RecordedStep& recorded, std::span<const MicroBatch> batches,
                       BegunStep& step) {
  mesh_->activity().set_action("playback", -1);
  recorded.start(*ctx_, batches, reader_);
  store_->values_changed();
  step.meeting = mesh_->world().host().all_reduce({&step.started, Dtype::kF64, {1}},
                                                  Reduction::kMax, "recorded step");
}

void Engine::fetch_results(BegunStep& step) {
  const DeviceKernels& device = ctx_->kernels.device;
  if (device.mark != nullptr) step.end = device.mark(ctx_->stream);
  step.arrival = device.fetch(ctx_->stream, sums_.rows(0, kStepSums), step.sums.data());
  if (std::int64_t all = sums_.numel(); all > kStepSums) {
    step.future_sums.resize(static_cast<std::size_t>(all - kStepSums));
    step.future_arrival =
        device.fetch(ctx_->stream, sums_.rows(kStepSums, all), step.future_sums.data());
  }
  if (routers_.sums.empty()) return;
  step.routers.resize(routers_.sums.view().bytes());
  step.routers_arrival = device.fetch(ctx_->stream, routers_.sums, step.routers.data());
}

void Engine::resume(std::int64_t updates, std::uint64_t seed) {
  BEV_CHECK(begun_.empty(), ErrorKind::kInternal, "engine: resumed with a step begun");
  updates_ = updates;
  options_.seed = seed;
  ctx_->kernels.device.upload(ctx_->stream, &updates, {&device_step()->update, Dtype::kI64, {1}});
}

void Engine::BegunStep::wait() {
  for (Work* work : {&meeting, &arrival, &future_arrival, &routers_arrival}) work->wait();
}

StepResult Engine::finish_step() {
  BEV_CHECK(!begun_.empty(), ErrorKind::kInternal, "engine: no step was begun");
  auto wait = [&] {
    TraceScope span(ctx_->trace, {TraceKind::kOther, "wait for the device"});
    begun_.front().wait();
  };
  wait();
  if (begun_.front().lost_rows()) {
    redo_steps();
    wait();
  }
  StepResult result = result_of(begun_.front(), true);
  if (options_.params_norm) result.params_norm = std::sqrt(begun_.front().sums[kParamSquares]);
  ended_.splice(ended_.end(), begun_, begun_.begin());
  if (result.finite) {
    ++updates_;
  } else {
    for (BegunStep& later : begun_) later.meeting.wait();
    ended_.splice(ended_.end(), begun_);
    forget_failure();
  }
  return result;
}

void Engine::forget_failure() {
  std::int32_t none = 0;
  ctx_->kernels.device.upload(ctx_->stream, &none, {&device_step()->failed, Dtype::kI32, {1}});
}

void Engine::redo_steps() {
  std::list<BegunStep> lost = std::exchange(begun_, {});
  for (BegunStep& step : lost) step.meeting.wait();
  forget_failure();
  {
    ScopedValue exact(fixed_exchange_, false);
    begin_step(lost.front().batches, lost.front().input);
  }
  begun_.front().redone = true;
  for (auto step = std::next(lost.begin()); step != lost.end(); ++step) {
    begin_step(step->batches, step->input);
  }
}

StepResult Engine::result_of(const BegunStep& step, bool with_gradient) const {
  StepResult result;
  double squares = step.sums[kSquares], loss = step.sums[kLoss];
  auto mean = [](double sum, double tokens) { return tokens > 0 ? sum / tokens : 0; };
  result.redone = step.redone;
  result.tokens = step.tokens;
  result.loss = mean(loss, step.tokens);
  result.finite = std::isfinite(loss);
  if (!with_gradient) return result;
  result.end = step.end;
  result.grad_norm = std::sqrt(squares) / step.input.loss_scale;
  result.finite &= std::isfinite(result.grad_norm);
  if (options_.zero_gradients) {
    result.zero_gradients = static_cast<std::int64_t>(step.sums[kZeros]);
  }
  for (std::size_t depth = 0; depth < step.future_sums.size(); ++depth) {
    result.future_losses.push_back(mean(step.future_sums[depth], step.future_tokens[depth]));
  }
  if (!step.routers.empty()) {
    visit_float(routers_.sums.dtype(), [&](auto type) {
      using T = decltype(type);
      const auto* values = reinterpret_cast<const T*>(step.routers.data());
      std::vector<double> sums(values, values + routers_.sums.numel());
      result.routers = router_loads(options_.model, sums);
    });
  }
  return result;
}

StepResult Engine::train_step(std::span<const MicroBatch> batches, const StepInput& input) {
  begin_step(batches, input);
  return finish_step();
}

StepResult Engine::gradients(std::span<const MicroBatch> batches, const StepInput& input) {
  auto run = [&] {
    BegunStep step;
    send_inputs(batches, input, step);
    forward_backward(batches);
    fetch_results(step);
    step.wait();
    return step;
  };
  BegunStep step = run();
  if (step.lost_rows()) {
    ScopedValue exact(fixed_exchange_, false);
    step = run();
    step.redone = true;
  }
  return result_of(step, true);
}

StepResult Engine::evaluate(std::span<const MicroBatch> batches) {
  BegunStep step;
  count_tokens(batches, step);
  begin_sums();
  executor_->run(schedule(batches.size(), false), batches, false, sum(kLoss));
  mesh_->world().all_reduce(sums_, Reduction::kSum, "loss").wait();
  ctx_->kernels.device.fetch(ctx_->stream, sums_.rows(0, kStepSums), step.sums.data()).wait();
  return result_of(step, false);
}

void Engine::forward_hidden(std::span<const MicroBatch> batches, HiddenSink& sink) {
  executor_->run_hidden(schedule(batches.size(), false), batches, sink);
}

std::string Engine::find_nonfinite(std::span<const MicroBatch> batches, const StepInput& input) {
  FiniteProbe probe;
  ScopedValue watching(ctx_->probe, &probe);
  ScopedValue exact(fixed_exchange_, false);
  BegunStep step;
  send_inputs(batches, input, step);
  forward_backward(batches);
  bool in_step = probe.found;
  probe.in_backward = true;
  for (const Param* param : store_->params()) {
    if (param->trains)
      ctx_->check("gradient sum", param->name, store_->local_gradient(*param).view);
  }
  return gather_findings(probe, in_step);
}

// The earliest finding in the order of computation counts: forward before backward before sums, the
// first stage first in the forward, the last stage first in the backward.
std::string Engine::gather_findings(const FiniteProbe& probe, bool in_step) {
  constexpr std::int64_t kText = 256;  // of each rank: its order, then text
  std::int64_t stages = pipeline_.shape.stages(), order = 0;
  if (probe.found) {
    order = !in_step                  ? 2 * stages + 1
            : probe.found_in_backward ? 2 * stages - probe.found_stage
                                      : 1 + probe.found_stage;
  }
  Group& world = mesh_->world().host();
  std::vector<std::uint8_t> mine(kText), all(kText * static_cast<std::size_t>(world.size()));
  std::memcpy(mine.data(), &order, sizeof(order));
  std::memcpy(mine.data() + sizeof(order), probe.message.data(),
              std::min<std::size_t>(probe.message.size(), kText - sizeof(order) - 1));
  world
      .all_gather({mine.data(), Dtype::kU8, {kText}},
                  {all.data(), Dtype::kU8, {kText * world.size()}}, "check")
      .wait();
  std::string first;
  std::int64_t best = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::uint8_t* found = all.data() + rank * kText;
    std::memcpy(&order, found, sizeof(order));
    if (order == 0 || (best != 0 && order >= best)) continue;
    best = order;
    std::string message(reinterpret_cast<const char*>(found + sizeof(order)));
    first = world.size() > 1 ? concat("rank ", rank, ", ", message) : message;
  }
  return first;
}

}  // namespace bev
