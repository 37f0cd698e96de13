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
#include "kernels/device.h"
#include "kernels/optim.h"
#include "parallel/encoder_objective.h"
#include "parallel/pipeline/schedule_player.h"

namespace bev {

Engine::Engine(RankModel& model, const TrainOptions& options) : model_(model) { build(options); }

Engine::Engine(World& world, const Kernels& kernels, const EngineOptions& options)
    : own_rank_(std::make_unique<Rank>(world, kernels, options)),
      own_model_(std::make_unique<RankModel>(*own_rank_, options)),
      model_(*own_model_) {
  build(options);
}

Engine::~Engine() = default;

void Engine::build(const TrainOptions& train) {
  train_ = train;
  if (train.objective == nullptr) own_objective_ = default_objective(options().model);
  if (train.objective == nullptr && options().model.encoder.next_sentence) {
    own_preparation_ = std::make_unique<PairWeights>(ctx(), options().model);
    preparation_ = own_preparation_.get();
  }
  objective_ = train.objective != nullptr ? train.objective : own_objective_.get();
  seed_ = options().seed;
  metrics_ = std::make_unique<StepMetrics>(ctx(), options().model, *objective_, train,
                                           options().gradients);
  fixed_exchange_ = options().parallel.moe_expert_rank_capacity_factor > 0 &&
                    options().parallel.expert_model_parallel_size > 1;
  if (options().gradients && train.optimizer) {
    optimizer_ = std::make_unique<Optimizer>(ctx(), store().optim_ranges(), store().shared_params(),
                                             options().optim, &model_.rank().host_memory());
  }
  captures_ = decide_capturing();
}

void Engine::weights_written() {
  if (optimizer_ != nullptr) optimizer_->refresh_main(ctx());
}

const Arena* Engine::offloaded() const {
  const Offloader* offloader = model_.executor().offloader();
  return offloader != nullptr ? &offloader->host() : nullptr;
}

std::string Engine::uncaptured_because() const {
  if (offloaded() != nullptr) return "activations are offloaded";
  if (!objective_->capturable()) return "the objective reads from the device";
  if (mesh().world().size() == 1) return "";
  if (mesh().shape().pp > 1) return "pipeline ranks meet at every message";
  if (model_.pipeline().shape.paired) return "micro-batches take turns";
  if (mesh().shape().ep > 1 && !fixed_exchange_) {
    return "experts exchange exact sizes (--moe-expert-rank-capacity-factor fixes them)";
  }
  return mesh().capturable() ? "" : "ranks share a GPU as threads";
}

bool Engine::decide_capturing() {
  if (!model_.rank().options().capture_steps || !model_.rank().runs_ahead()) return false;
  std::string reason = uncaptured_because();
  if (!reason.empty() && options().gradients && mesh().world().rank() == 0) {
    log_info(concat(reason, ": steps are not recorded as graphs"));
  }
  return reason.empty();
}

bool Engine::can_capture() const {
  return captures_ && model_.rank().can_capture() && (fixed_exchange_ || mesh().shape().ep == 1);
}

namespace {
// Schedules of the user are simulated before they run, because a wrong one would hang.
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

const Schedule& Engine::training_schedule(std::size_t micro_batches) {
  auto [found, added] = schedules_.try_emplace(micro_batches);
  if (added) {
    std::vector<Schedule> lists = training_schedules(train_.schedules, model_.pipeline().shape,
                                                     static_cast<std::int64_t>(micro_batches));
    found->second = std::move(lists[static_cast<std::size_t>(mesh().at().pp)]);
  }
  return found->second;
}

void Engine::count_weights(std::span<const MicroBatch> batches, BegunStep& step) {
  step.weights.assign(metrics_->term_count(), 0.0);
  for (const MicroBatch& batch : batches) objective_->add_weights(ctx(), batch, step.weights);
  View weights{step.weights.data(), Dtype::kF64, {std::ssize(step.weights)}};
  mesh().grads().host().all_reduce(weights, Reduction::kSum, "weights of the loss").wait();
}

void Engine::send_inputs(std::span<const MicroBatch> batches, const StepInput& input,
                         BegunStep& step) {
  step.batches = batches;
  step.input = input;
  mesh().activity().set_step(input.iteration);
  count_weights(batches, step);
  StepInputs inputs;
  inputs.iteration = input.iteration;
  inputs.random_key = mix_bits(seed_, static_cast<std::uint64_t>(input.iteration));
  inputs.loss_scale = input.loss_scale;
  inputs.loss_factor = step.weights[0] > 0 ? input.loss_scale / step.weights[0] : 0;
  inputs.lr = input.lr;
  inputs.weight_decay = input.weight_decay;
  // Only StepInputs is uploaded; the rest of the state is written by the device.
  ctx().kernels.device.upload(ctx().stream, &inputs,
                              {model_.device_step(), Dtype::kU8, {sizeof(StepInputs)}});
}

void Engine::run_micro_batches(std::span<const MicroBatch> batches) {
  ScopedValue training(ctx().training, true);
  ScopedValue metrics(ctx().metrics, &metrics_->block());
  ScopedValue routers(ctx().routers, metrics_->routers());
  ScopedValue lost(ctx().lost_rows, fixed_exchange_ ? metrics_->lost_rows() : nullptr);
  model_.executor().run(training_schedule(batches.size()), batches, true, *objective_,
                        metrics_->terms());
}

void Engine::finish_sums() {
  mesh().activity().set_action("gradient sums", -1);
  TraceScope span(ctx().trace, {TraceKind::kOther, "gradient sums"});
  store().finish_gradients();
  store().add_gradient_squares(metrics_->gradient_squares());
  const MetricBlock& block = metrics_->block();
  if (double* zeros = block.find("num zeros")) store().count_zero_gradients(zeros);
  block.reduce(mesh().world(), MetricPhase::kStep);
}

void Engine::update(double clip_grad) {
  mesh().activity().set_action("optimizer", -1);
  TraceScope span(ctx().trace, {TraceKind::kOther, "optimizer"});
  const MetricBlock& block = metrics_->block();
  ScopedValue metrics(ctx().metrics, &block);
  ctx().kernels.optim.clip(ctx().stream, {.square_sum = metrics_->gradient_squares(),
                                          .loss = metrics_->terms(),
                                          .state = model_.device_step(),
                                          .max_norm = clip_grad,
                                          .lost_rows = metrics_->lost_rows()});
  store().amaxes().finish_step(model_.device_step());
  optimizer_->step(ctx());
  if (double* squares = block.find("params norm")) {
    optimizer_->add_squares(ctx(), squares);
    store().add_frozen_squares(squares);
  }
  if (block.shows(MetricPhase::kUpdate)) block.reduce(mesh().world(), MetricPhase::kUpdate);
}

void Engine::forward_backward(std::span<const MicroBatch> batches) {
  store().begin_step(static_cast<std::int64_t>(batches.size()), metrics_->gradient_squares());
  metrics_->clear(ctx());
  run_micro_batches(batches);
  finish_sums();
}

class Engine::Parts final : public StepParts {
 public:
  explicit Parts(Engine& engine) : engine_(engine) {}
  void first(const MicroBatch& batch, const StepShape& shape) const override {
    ParamStore& store = engine_.store();
    if (store.gathers_first()) store.gather_values();
    const StepMetrics& metrics = *engine_.metrics_;
    store.begin_step(shape.kinds, metrics.gradient_squares());
    metrics.clear(engine_.ctx());
    next(batch);
  }
  void next(const MicroBatch& batch) const override {
    engine_.run_micro_batches({&batch, 1});
    engine_.store().pause();
  }
  void end(double clip_grad) const override {
    engine_.finish_sums();
    engine_.update(clip_grad);
    if (!engine_.store().gathers_first()) engine_.store().gather_values();
  }

 private:
  Engine& engine_;
};

void Engine::begin_step(StepBatch batch, const StepInput& input) {
  flights_.push_back({std::move(batch), input});
  begin(flights_.back().batch.micro_batches, input);
}

void Engine::begin(std::span<const MicroBatch> batches, const StepInput& input) {
  if (ended_.empty()) ended_.emplace_back();
  begun_.splice(begun_.end(), ended_, ended_.begin());
  BegunStep& step = begun_.back();
  step.clear();
  send_inputs(batches, input, step);
  StepGraph* graph =
      captures_ ? graphs_.find(ctx(), batches, input.clip_grad, can_capture(), Parts(*this))
                : nullptr;
  if (graph != nullptr) {
    launch(*graph, batches, step);
  } else {
    forward_backward(batches);
    if (reader_ != nullptr) reader_->wait_read();
    update(input.clip_grad);
    store().gather_values();
  }
  fetch_results(step);
}

// A launch does not synchronise the hosts of the ranks in its collectives. They meet once, after
// all graphs are enqueued, and wait for a device only after that.
void Engine::launch(StepGraph& graph, std::span<const MicroBatch> batches, BegunStep& step) {
  mesh().activity().set_action("playback", -1);
  graph.launch(ctx(), batches, reader_);
  store().values_changed();
  step.meeting = mesh().world().host().all_reduce({&step.started, Dtype::kF64, {1}},
                                                  Reduction::kMax, "recorded step");
}

void Engine::fetch_results(BegunStep& step) {
  const DeviceKernels& device = ctx().kernels.device;
  if (device.mark != nullptr) step.end = device.mark(ctx().stream);
  step.arrival = metrics_->block().fetch(ctx(), step.sums);
}

void Engine::resume(std::int64_t updates, std::uint64_t seed) {
  BEV_CHECK(begun_.empty(), ErrorKind::kInternal, "engine: resumed with a step begun");
  updates_ = updates;
  seed_ = seed;
  ctx().kernels.device.upload(ctx().stream, &updates,
                              {&model_.device_step()->update, Dtype::kI64, {1}});
}

// Keeps the capacity of the vectors for the next step.
void Engine::BegunStep::clear() {
  redone = false;
  end = nullptr;
  meeting = Work();
  arrival = Work();
  started = 0;
}

void Engine::BegunStep::wait() {
  meeting.wait();
  arrival.wait();
}

StepResult Engine::finish() {
  BEV_CHECK(!begun_.empty(), ErrorKind::kInternal, "engine: no step was begun");
  auto wait = [&] {
    TraceScope span(ctx().trace, {TraceKind::kOther, "wait for the device"});
    begun_.front().wait();
  };
  wait();
  if (metrics_->any_lost(begun_.front().sums)) {
    redo_steps();
    wait();
  }
  StepResult result = result_of(begun_.front(), true);
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

Engine::Finished Engine::finish_step() {
  StepResult result = finish();
  BEV_CHECK(!flights_.empty(), ErrorKind::kInternal, "engine: no step is in flight");
  StepInFlight step = std::move(flights_.front());
  flights_.pop_front();
  return {std::move(result), std::move(step)};
}

void Engine::forget_failure() {
  std::int32_t none = 0;
  ctx().kernels.device.upload(ctx().stream, &none,
                              {&model_.device_step()->failed, Dtype::kI32, {1}});
}

void Engine::redo_steps() {
  std::list<BegunStep> lost = std::exchange(begun_, {});
  for (BegunStep& step : lost) step.meeting.wait();
  forget_failure();
  {
    ScopedValue exact(fixed_exchange_, false);
    begin(lost.front().batches, lost.front().input);
  }
  begun_.front().redone = true;
  for (auto step = std::next(lost.begin()); step != lost.end(); ++step) {
    begin(step->batches, step->input);
  }
}

StepResult Engine::result_of(const BegunStep& step, bool with_gradient) {
  StepResult result;
  double loss = metrics_->loss_sum(step.sums);
  result.redone = step.redone;
  result.tokens = step.weights[0];
  result.loss = result.tokens > 0 ? loss / result.tokens : 0;
  result.finite = std::isfinite(loss);
  if (!with_gradient) return result;
  result.end = step.end;
  StepMetrics::Told told = metrics_->tell(step.sums, step.weights, step.input.loss_scale);
  result.grad_norm = told.grad_norm;
  result.finite &= std::isfinite(result.grad_norm);
  result.metrics = told.metrics;
  result.routers = std::move(told.routers);
  return result;
}

StepResult Engine::train_step(std::span<const MicroBatch> batches, const StepInput& input) {
  begin(batches, input);
  return finish();
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
  if (metrics_->any_lost(step.sums)) {
    ScopedValue exact(fixed_exchange_, false);
    step = run();
    step.redone = true;
  }
  return result_of(step, true);
}

StepResult Engine::evaluate(std::span<const MicroBatch> batches) {
  BegunStep step;
  count_weights(batches, step);
  metrics_->clear(ctx());
  model_.executor().run(model_.forward_schedule(batches.size()), batches, false, *objective_,
                        metrics_->terms());
  metrics_->block().reduce(mesh().world(), MetricPhase::kStep);
  metrics_->block().fetch(ctx(), step.sums).wait();
  return result_of(step, false);
}

std::string Engine::find_nonfinite(std::span<const MicroBatch> batches, const StepInput& input) {
  FiniteProbe probe;
  ScopedValue watching(ctx().probe, &probe);
  ScopedValue exact(fixed_exchange_, false);
  BegunStep step;
  send_inputs(batches, input, step);
  forward_backward(batches);
  bool in_step = probe.found;
  probe.in_backward = true;
  for (const Param* param : store().params()) {
    if (param->trains)
      ctx().check("gradient sum", param->name, store().local_gradient(*param).view);
  }
  return gather_findings(probe, in_step);
}

void Engine::show_tensors(std::span<const MicroBatch> batches, const StepInput& input,
                          TensorSink& sink) {
  FiniteProbe probe;
  probe.sink = &sink;
  ScopedValue watching(ctx().probe, &probe);
  ScopedValue exact(fixed_exchange_, false);
  BegunStep step;
  send_inputs(batches, input, step);
  forward_backward(batches);
}

// Reports the earliest finding in the order of computation: forward before backward before gradient
// reduction; in the forward the first stage first, in the backward the last stage first.
std::string Engine::gather_findings(const FiniteProbe& probe, bool in_step) {
  constexpr std::int64_t kText = 256;  // of each rank: its order, then text
  std::int64_t stages = model_.pipeline().shape.stages(), order = 0;
  if (probe.found) {
    order = !in_step                  ? 2 * stages + 1
            : probe.found_in_backward ? 2 * stages - probe.found_stage
                                      : 1 + probe.found_stage;
  }
  Group& world = mesh().world().host();
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
