#include "train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/divide.h"
#include "base/error.h"
#include "base/log.h"
#include "base/trace.h"
#include "kernels/device.h"
#include "plan/flops.h"
#include "plan/peak_flops.h"
#include "train/memory_report.h"
#include "train/tensorboard.h"

namespace bev {

namespace {

LossScaler make_scaler(const OptimConfig& optim, bool fp16) {
  if (optim.loss_scale > 0) return LossScaler::constant(optim.loss_scale);
  if (!fp16) return LossScaler::constant(1);
  DynamicLossScale rules;
  rules.initial = optim.initial_loss_scale;
  rules.min = optim.min_loss_scale;
  rules.window = optim.loss_scale_window;
  rules.hysteresis = optim.hysteresis;
  return LossScaler::dynamic(rules);
}

// Mean over the last tenth of the run, over finite losses only.
double last_mean(const std::vector<PlotPoint>& points) {
  double sum = 0, used = 0;
  for (std::size_t i = points.size() - ceil_div(points.size(), 10); i < points.size(); ++i) {
    if (!std::isfinite(points[i].y)) continue;
    sum += points[i].y;
    used += 1;
  }
  return used > 0 ? sum / used : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

struct Trainer::Sinks {
  Sinks(const LogConfig& log, const ReportOptions& report, std::int64_t first_iteration)
      : options(report), iteration_log(report), time_left(report.train_iterations) {
    if (!log.metrics_out.empty()) {
      // A resumed run keeps the metrics of earlier iterations.
      if (first_iteration > 1) keep_metrics_before(log.metrics_out, first_iteration);
      OpenMode mode = first_iteration > 1 ? OpenMode::kAppend : OpenMode::kTruncate;
      metrics = std::make_unique<MetricsWriter>(log.metrics_out, mode);
    }
    if (!log.tensorboard_dir.empty()) {
      tensorboard = std::make_unique<TensorBoardWriter>(log.tensorboard_dir);
    }
    if (log.progress) progress = std::make_unique<ProgressLine>(report.train_iterations);
    tensorboard_interval = std::max<std::int64_t>(log.tensorboard_log_interval, 1);
  }

  void report(const StepReport& step) {
    if (metrics) metrics->write(step);
    if (tensorboard && step.iteration % tensorboard_interval == 0) {
      write_scalars(*tensorboard, step, options);
    }
    iteration_log.add(step);
    if (iteration_log.due()) log_info(iteration_log.line(local_timestamp()));
    if (std::string left = time_left.add(step); !left.empty()) log_info(left);
    if (progress) progress->update(step);
  }
  void report_validation(const StepReport& at, double loss) {
    if (tensorboard) write_validation_scalars(*tensorboard, at, loss);
    log_info(validation_lines(concat("iteration ", at.iteration), loss));
  }

  ReportOptions options;
  IterationLog iteration_log;
  TimeLeft time_left;
  std::unique_ptr<MetricsWriter> metrics;
  std::unique_ptr<TensorBoardWriter> tensorboard;
  std::unique_ptr<ProgressLine> progress;
  std::int64_t tensorboard_interval = 1;
};

Trainer::Trainer(Engine& engine, const TrainerConfig& config, const RunData& data,
                 const StopSignal* stop, RunSaver* saver)
    : engine_(engine),
      config_(config),
      data_(data),
      stop_(stop),
      saver_(saver),
      batches_(config.batch.spec(engine.model().mesh().shape().dp, config.data.seq_length)),
      lr_(lr_schedule(config.optim, batches_)),
      rules_(config.optim.groups.rules()),
      weight_decay_(weight_decay_schedule(config.optim, config.train, batches_)),
      scaler_(make_scaler(config.optim, config.fp16)) {
  bool ahead = engine.model().rank().runs_ahead();
  steps_ahead_ = static_cast<std::size_t>(config.steps_ahead >= 0 ? config.steps_ahead : ahead);
  iterations_ = config.train.train_iters > 0
                    ? config.train.train_iters
                    : batches_.iterations_within(config.train.train_samples);
  if (data.replay) {
    auto there = static_cast<std::int64_t>(data.replay->size());
    iterations_ = iterations_ > 0 ? std::min(iterations_, there) : there;
  } else {
    consumed_samples_ = scheduled_samples_ = config.loader.consumed_train_samples;
    first_iteration_ = batches_.iterations_within(consumed_samples_) + 1;
  }
  if (config.start) go_on_from(*config.start);
  begin_ = state_after(first_iteration_ - 1);
  if (!data.replay) {
    loader_ = open_loader(data.train, data.train_order, batches_, consumed_samples_);
  }
  ReportOptions report;
  report.train_iterations = iterations_;
  report.log_interval = config.log.log_interval;
  report.world_size = engine.model().mesh().world().size();
  report.log_throughput = config.log.log_throughput;
  if (engine.model().mesh().world().rank() == 0) {
    report.peak_flops_per_second = measure_peak_flops(engine.model().ctx());
    sinks_ = std::make_unique<Sinks>(config.log, report, config.start ? first_iteration_ : 1);
  }
  engine.model().rank().arena().reset_peak();  // from here on the peak is that of training
}

Trainer::~Trainer() = default;

// Without optimizer state only the position in the data is restored, as in Megatron.
void Trainer::go_on_from(const TrainingState& state) {
  first_iteration_ = state.iteration + 1;
  consumed_samples_ = state.consumed_samples;
  consumed_tokens_ = state.consumed_tokens;
  skipped_ = state.skipped;
  scheduled_samples_ = 0;
  if (!config_.checkpoint.load_optim) return;
  scheduled_samples_ = state.scheduled_samples;
  if (scaler_.is_dynamic()) scaler_.restore(state.scaler);
  if (!config_.checkpoint.use_checkpoint_opt_param_scheduler) return;
  lr_ = state.lr;
  weight_decay_ = state.weight_decay;
}

TrainingState Trainer::state_after(std::int64_t iteration) const {
  return {.iteration = iteration,
          .consumed_samples = consumed_samples_,
          .scheduled_samples = scheduled_samples_,
          .consumed_tokens = consumed_tokens_,
          .skipped = skipped_,
          .updates = engine_.updates(),
          .seed = static_cast<std::int64_t>(engine_.seed()),
          .scaler = scaler_.state(),
          .lr = lr_,
          .weight_decay = weight_decay_};
}

StepBatch Trainer::load(std::int64_t iteration) {
  TraceScope span(engine_.model().ctx().trace, {TraceKind::kOther, "loader"});
  if (data_.replay) {
    return replay_step(engine_.model().ctx(),
                       (*data_.replay)[static_cast<std::size_t>(iteration - 1)],
                       batches_.micro_batch_size(), mtp_spec(engine_.model().options().model));
  }
  return loader_->next(engine_.model().ctx());
}

std::unique_ptr<Loader> Trainer::open_loader(std::shared_ptr<const Dataset> data,
                                             std::shared_ptr<const SampleOrder> order,
                                             const BatchSchedule& batches,
                                             std::int64_t consumed_samples) {
  ReadAhead ahead{config_.loader.num_workers, config_.loader.prefetch_factor};
  return std::make_unique<Loader>(engine_.model().ctx(), std::move(data), std::move(order), batches,
                                  consumed_samples, ahead,
                                  mtp_spec(engine_.model().options().model));
}

StepInput Trainer::input_for(std::int64_t iteration, std::size_t before) const {
  LossScaler scaler = scaler_;
  std::int64_t samples = scheduled_samples_;
  for (const StepInFlight& step : engine_.in_flight()) {
    if (before-- == 0) break;
    scaler.update(false);
    samples += step.batch.samples;
  }
  StepInput input;
  input.iteration = iteration;
  if (!config_.optim.groups.freeze_all_layers) input.lr = learning_rates(lr_, rules_, samples);
  input.weight_decay = weight_decay_.weight_decay(samples);
  input.loss_scale = scaler.scale();
  input.clip_grad = config_.optim.clip_grad;
  return input;
}

// One step more than is waited for keeps the device busy while the host reads and reports. Saving,
// validation and exits need the step before to be finished.
bool Trainer::may_begin(std::int64_t iteration) const {
  if (iteration > iterations_) return false;
  const std::list<StepInFlight>& flights = engine_.in_flight();
  if (flights.empty()) return true;
  std::int64_t last = flights.back().input.iteration;
  bool exits = config_.train.exit_interval > 0 && last % config_.train.exit_interval == 0;
  bool saves = saver_ != nullptr && saver_->due(last);
  return flights.size() <= steps_ahead_ && !exits && !saves && !validation_due(last);
}

void Trainer::begin_time() {
  const Context& ctx = engine_.model().ctx();
  begin_seconds_ = monotonic_seconds();
  if (ctx.kernels.device.mark != nullptr) begin_timestamp_ = ctx.kernels.device.mark(ctx.stream);
}

// The host may read the results of several steps at once, but the device timestamps are separate.
double Trainer::take_time(std::shared_ptr<const DeviceTimestamp> end) {
  double now = monotonic_seconds();
  double seconds = now - std::exchange(begin_seconds_, now);
  if (end) {
    seconds = end->seconds_since(*begin_timestamp_);
    begin_timestamp_ = std::move(end);
  }
  return seconds;
}

void Trainer::begin(std::int64_t iteration) {
  if (engine_.in_flight().empty()) begin_time();
  StepScope traced(engine_.model().ctx().trace, iteration);
  StepBatch batch = load(iteration);
  StepInput input = input_for(iteration, engine_.in_flight().size());
  engine_.begin_step(std::move(batch), input);
}

StepReport Trainer::finish_step() {
  auto [result, step] = engine_.finish_step();
  const auto& [batch, input] = step;

  StepReport report;
  report.iteration = input.iteration;
  report.loss = result.loss;
  report.metrics.assign(result.metrics.begin(), result.metrics.end());
  report.routers = std::move(result.routers);
  report.learning_rate = input.lr.values[0];
  if (config_.optim.groups.decoupled_lr >= 0) {
    report.decoupled_learning_rate = input.lr.values[kDecoupledLrIndex];
  }
  report.weight_decay = input.weight_decay;
  report.loss_scale = input.loss_scale;
  report.skipped = !result.finite;
  report.redone = result.redone;
  if (!result.finite) report.nan = handle_bad_step(step, result);
  scaler_.update(!result.finite);
  consumed_samples_ += batch.samples;
  consumed_tokens_ += batch.tokens;
  if (result.finite) scheduled_samples_ += batch.samples;
  skipped_ += result.finite ? 0 : 1;
  report.consumed_samples = consumed_samples_;
  report.global_batch_size = batch.samples;
  report.tokens = batch.tokens;
  report.consumed_tokens = consumed_tokens_;
  report.flops = megatron_flops(flop_sizes(engine_.model().options().model),
                                {batch.tokens, batch.squared_lengths});
  if (!result.finite) {
    engine_.begin_again([&](const StepInFlight& later, std::size_t place) {
      return input_for(later.input.iteration, place);
    });
  }
  report.elapsed_seconds = take_time(std::move(result.end));
  return report;
}

// An overflow under dynamic loss scaling is normal; any other non-finite step is investigated.
bool Trainer::handle_bad_step(const StepInFlight& step, const StepResult& result) {
  bool overflow = config_.fp16 && config_.optim.loss_scale <= 0 && std::isfinite(result.loss);
  if (overflow) return false;
  if (!config_.train.check_for_nan_in_loss_and_grad) return true;
  std::string found = engine_.find_nonfinite(step.batch.micro_batches, step.input);
  if (found.empty()) found = "the step is finite when run again: a transient fault";
  std::string message = concat("iteration ", step.input.iteration, ": loss ", result.loss,
                               ", gradient norm ", result.grad_norm, "; ", found);
  bool skips = config_.train.nan_policy == NanPolicy::kSkip;
  if (!skips && saver_ != nullptr) saver_->complete();  // save of an earlier good step
  BEV_CHECK(skips, ErrorKind::kNumeric, message, " (--nan-policy skip goes on without such steps)");
  if (sinks_) log_warning(message + "; the step is skipped");
  return true;
}

double Trainer::validate() {
  double loss = 0, tokens = 0;
  // Uses the last batch size of the schedule, so that every validation reads the same samples.
  BatchSpec spec = config_.batch.spec(engine_.model().mesh().shape().dp, config_.data.seq_length);
  spec.global_batch_size = batches_.steps().back().global_batch_size;
  spec.step_schedule.clear();
  spec.rampup.clear();
  auto loader = open_loader(data_.valid, data_.valid_order, BatchSchedule(spec), 0);
  for (std::int64_t i = 0; i < config_.train.eval_iters; ++i) {
    StepBatch batch = loader->next(engine_.model().ctx());
    StepResult result = engine_.evaluate(batch.micro_batches);
    loss += result.loss * result.tokens;
    tokens += result.tokens;
  }
  return loss / tokens;
}

// The strongest reason of any rank wins, so that all ranks stop, and save, after the same step.
Trainer::Agreement Trainer::agree(std::int64_t iteration) {
  std::array<std::int32_t, 4> decision{static_cast<std::int32_t>(StopReason::kFinished), 0, 0, 0};
  double minutes = (monotonic_seconds() - start_seconds_) / 60;
  if (stop_ != nullptr && stop_->received() != 0) {
    decision[0] = static_cast<std::int32_t>(StopReason::kSignal);
    decision[1] = stop_->received();
  } else if (config_.train.exit_duration_in_mins > 0 &&
             minutes > config_.train.exit_duration_in_mins) {
    decision[0] = static_cast<std::int32_t>(StopReason::kDuration);
  } else if (config_.train.exit_interval > 0 && iteration % config_.train.exit_interval == 0) {
    decision[0] = static_cast<std::int32_t>(StopReason::kInterval);
  }
  if (saver_ != nullptr) {
    decision[2] = saver_->wants_save(iteration) ? 1 : 0;
    decision[3] = saver_->pending() ? 1 : 0;
  }
  View words{decision.data(), Dtype::kI32, {4}};
  engine_.model().mesh().world().host().all_reduce(words, Reduction::kMax, "stop decision").wait();
  return {static_cast<StopReason>(decision[0]), decision[1], decision[2] != 0, decision[3] != 0};
}

// A save needs the state between two steps: steps in flight are finished first.
void Trainer::save_when_due(std::int64_t iteration, const Agreement& agreed) {
  if (saver_ == nullptr) return;
  if (!agreed.pending) saver_->advance();
  if (agreed.save) saver_->want_save();
  if (saver_->due(iteration) && engine_.in_flight().empty()) saver_->save(state_after(iteration));
}

bool Trainer::validation_due(std::int64_t iteration) const {
  return config_.train.eval_interval > 0 && data_.valid &&
         (iteration % config_.train.eval_interval == 0 || iteration == iterations_);
}

// Ranks that differ in dp and cp only use the same memory; one of them reports.
void Trainer::report_memory(std::int64_t iteration) {
  const MeshCoordinate& at = engine_.model().mesh().at();
  std::int64_t interval = config_.log.log_memory_interval;
  if (interval == 0 || iteration % interval != 0 || at.dp != 0 || at.cp != 0) return;
  const Arena* hosts[] = {&engine_.model().rank().host_memory(), engine_.offloaded()};
  log_info(memory_text(engine_.model().rank().arena(), hosts, engine_.model().mesh().world().rank(),
                       iteration));
}

TrainOutcome Trainer::run() {
  TrainOutcome outcome;
  outcome.validation_loss = std::numeric_limits<double>::quiet_NaN();
  start_seconds_ = monotonic_seconds();
  bool stopping = false;
  for (std::int64_t next = first_iteration_;;) {
    while (!stopping && may_begin(next)) begin(next++);
    if (engine_.in_flight().empty()) break;
    StepReport report = finish_step();
    std::int64_t iteration = report.iteration;
    outcome.iterations = iteration - first_iteration_ + 1;
    curves_.train.push_back({static_cast<double>(iteration), report.loss});
    if (sinks_) sinks_->report(report);
    report_memory(iteration);
    if (validation_due(iteration)) {
      outcome.validation_loss = validate();
      curves_.validation.push_back({static_cast<double>(iteration), outcome.validation_loss});
      if (sinks_) sinks_->report_validation(report, outcome.validation_loss);
    }
    if (stopping || iteration == iterations_) continue;
    Agreement agreed = agree(iteration);
    outcome.reason = agreed.reason;
    outcome.signal = agreed.signal;
    stopping = agreed.reason != StopReason::kFinished;
    if (!stopping) save_when_due(iteration, agreed);
  }
  std::int64_t last = first_iteration_ - 1 + outcome.iterations;
  if (saver_ != nullptr && outcome.iterations > 0) {
    outcome.save_problem = saver_->finish(state_after(last));
  }
  finish(outcome);
  return outcome;
}

void Trainer::finish(TrainOutcome& outcome) {
  outcome.seconds = monotonic_seconds() - start_seconds_;
  outcome.consumed_samples = consumed_samples_ - begin_.consumed_samples;
  outcome.consumed_tokens = consumed_tokens_ - begin_.consumed_tokens;
  outcome.skipped = skipped_ - begin_.skipped;
  if (!curves_.train.empty()) outcome.first_loss = curves_.train.front().y;
  outcome.last_loss = last_mean(curves_.train);
  outcome.curves = curves_;
  if (!sinks_) return;
  if (sinks_->progress) sinks_->progress->clear();
  if (sinks_->tensorboard) sinks_->tensorboard->flush();
}

}  // namespace bev
