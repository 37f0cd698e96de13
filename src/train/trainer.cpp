#include "train/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/scoped_value.h"
#include "base/trace.h"
#include "checkpoint/agreement.h"
#include "kernels/device.h"
#include "plan/flops.h"
#include "plan/peak_flops.h"
#include "train/memory_report.h"
#include "train/tensor_files.h"
#include "train/weight_check.h"

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

}  // namespace

Trainer::Trainer(Engine& engine, const TrainerConfig& config, const RunData& data,
                 const StopSignal* stop, RunSaver* saver)
    : engine_(engine),
      config_(config),
      data_(data),
      stop_(stop),
      saver_(saver),
      batches_(
          config.batch.spec(batch_ranks(engine.model().mesh().shape()), config.data.seq_length)),
      lr_(lr_schedule(config.optim, batches_)),
      rules_(config.optim.groups.rules()),
      weight_decay_(weight_decay_schedule(config.optim, config.train, batches_)),
      scaler_(make_scaler(config.optim, config.fp16)) {
  bool ahead = engine.model().rank().runs_ahead();
  steps_ahead_ = static_cast<std::size_t>(config.steps_ahead >= 0 ? config.steps_ahead : ahead);
  if (config.source != nullptr) steps_ahead_ = 0;  // a batch depends on the step before
  eval_batch_ = data.replay ? EvalBatch()
                            : eval_batch(config.train.eval, config.batch,
                                         engine.model().mesh().shape().dp, config.data.seq_length);
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
  if (data.train) {
    loader_ = open_loader(data.train, data.train_order, batches_, consumed_samples_);
  }
  ReportOptions report;
  report.train_iterations = iterations_;
  report.log_interval = config.log.log_interval;
  report.world_size = engine.model().mesh().world().size();
  report.log_throughput = config.log.log_throughput;
  if (engine.model().mesh().world().rank() == 0) {
    report.peak_flops_per_second = measure_peak_flops(engine.model().ctx());
    bool saves = !config.train.eval.skip_train;
    RunHistory history{.save = saves ? config.checkpoint.save : "",
                       .load = config.checkpoint.load,
                       .first_iteration = config.start ? first_iteration_ : 1};
    reports_ = std::make_unique<RunReports>(config.log, report, history);
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
  validation_ = state.validation;
  if (saver_ != nullptr) saver_->go_on_from(validation_);
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
          .weight_decay = weight_decay_,
          .validation = validation_};
}

StepBatch Trainer::load(std::int64_t iteration) {
  TraceScope span(engine_.model().ctx().trace, {TraceKind::kOther, "loader"});
  StepBatch step;
  if (config_.source != nullptr) {
    step = config_.source->next(iteration);
  } else if (data_.replay) {
    step =
        replay_step(engine_.model().ctx(), (*data_.replay)[static_cast<std::size_t>(iteration - 1)],
                    batches_.micro_batch_size(), mtp_spec(engine_.model().options().model));
  } else {
    step = loader_->next(engine_.model().ctx());
  }
  engine_.prepare(step.micro_batches);
  return step;
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
  if (skips(iteration) || saves_tensors(iteration)) return false;
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
  if (saves_tensors(iteration)) save_tensors(batch, input);
  engine_.begin_step(std::move(batch), input);
}

bool Trainer::skips(std::int64_t iteration) const {
  return std::ranges::count(config_.train.iterations_to_skip, iteration) > 0;
}

void Trainer::skip(std::int64_t iteration) {
  StepBatch batch = load(iteration);
  consumed_samples_ += batch.samples;
  consumed_tokens_ += batch.tokens;
  if (reports_) log_info(concat("iteration ", iteration, ": left out (--iterations-to-skip)"));
}

namespace {
bool is_due(std::int64_t interval, std::int64_t iteration) {
  return interval > 0 && iteration % interval == 0;
}
}  // namespace

bool Trainer::saves_tensors(std::int64_t iteration) const {
  const TrainConfig& train = config_.train;
  return is_due(train.save_activations_interval, iteration) ||
         is_due(train.save_dgrads_interval, iteration) ||
         is_due(train.save_wgrads_interval, iteration);
}

void Trainer::save_tensors(const StepBatch& batch, const StepInput& input) {
  const TrainConfig& train = config_.train;
  save_step_tensors(engine_, batch.micro_batches, input,
                    {.folder = config_.checkpoint.save,
                     .activations = is_due(train.save_activations_interval, input.iteration),
                     .dgrads = is_due(train.save_dgrads_interval, input.iteration),
                     .wgrads = is_due(train.save_wgrads_interval, input.iteration)});
}

void Trainer::watch_for_spikes(std::int64_t iteration, const StepResult& result) {
  const auto watch = [&](bool wanted, SpikeWatch& seen, const char* flag, const char* what,
                         double value) {
    if (!wanted || !seen.add(value) || !reports_) return;
    log_warning(concat(flag, ": iteration ", iteration, ": ", what, " ", value, " is more than ",
                       SpikeWatch::kThreshold, " times ", seen.largest(),
                       ", the largest of the first ", SpikeWatch::kSamples, " iterations"));
  };
  watch(config_.train.check_for_spiky_loss, losses_, "--check-for-spiky-loss", "loss", result.loss);
  watch(config_.train.check_for_large_grads, norms_, "--check-for-large-grads", "gradient norm",
        result.grad_norm);
}

void Trainer::check_weights(std::int64_t iteration) {
  if (!is_due(config_.train.check_weight_hash_interval, iteration)) return;
  const std::string found = find_differing_weights(engine_.model());
  BEV_CHECK(found.empty(), ErrorKind::kNumeric,
            "--check-weight-hash-across-dp-replicas-interval: after iteration ", iteration, " ",
            found, ", though they hold copies; nothing is saved, go on from the last checkpoint");
}

std::optional<StepReport> Trainer::finish_step() {
  auto [result, step] = engine_.finish_step();
  const auto& [batch, input] = step;
  BadStep bad;
  if (!result.finite) bad = handle_bad_step(step, result);
  if (bad.stops_before) return std::nullopt;
  if (result.finite) skips_in_a_row_ = 0;
  scaler_.update(!result.finite);
  watch_for_spikes(input.iteration, result);
  consumed_samples_ += batch.samples;
  consumed_tokens_ += batch.tokens;
  if (result.finite) scheduled_samples_ += batch.samples;
  skipped_ += result.finite ? 0 : 1;
  validation_.validated = false;

  StepReport report = report_after(input.iteration);
  report.loss = result.loss;
  report.metrics.assign(result.metrics.begin(), result.metrics.end());
  if (config_.source != nullptr) {
    const std::vector<Metric>& more = config_.source->metrics();
    report.metrics.insert(report.metrics.end(), more.begin(), more.end());
  }
  report.routers = std::move(result.routers);
  report.learning_rate = input.lr.values[0];
  if (config_.optim.groups.decoupled_lr >= 0) {
    report.decoupled_learning_rate = input.lr.values[kDecoupledLrIndex];
  }
  report.weight_decay = input.weight_decay;
  report.loss_scale = input.loss_scale;
  report.skipped = !result.finite;
  report.nan = !result.finite && bad.nan;
  report.redone = result.redone;
  report.global_batch_size = batch.samples;
  report.tokens = batch.tokens;
  report.consumed_tokens = consumed_tokens_;
  report.flops = megatron_flops(flop_sizes(engine_.model().options().model),
                                {batch.tokens, batch.squared_lengths});
  if (!result.finite && failure_.empty()) {
    engine_.begin_again([&](const StepInFlight& later, std::size_t place) {
      return input_for(later.input.iteration, place);
    });
  }
  report.elapsed_seconds = take_time(std::move(result.end));
  return report;
}

// Other ranks may have begun a collective that this one does not reach, so only a run of one rank
// ends in good order; the state is that between two steps.
template <class Work>
bool Trainer::survives(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    bool alone = engine_.model().mesh().world().size() == 1;
    if (!alone || error.kind() != ErrorKind::kInput || saver_ == nullptr) throw;
    data_error_ = error;
    return false;
  }
  return true;
}

StepReport Trainer::report_after(std::int64_t iteration) const {
  StepReport report;
  report.iteration = iteration;
  report.consumed_samples = consumed_samples_;
  if (data_.epoch_samples > 0) {
    report.epoch = static_cast<double>(consumed_samples_) / data_.epoch_samples;
  }
  return report;
}

// An overflow under dynamic loss scaling is normal as long as the scale can go down; any other
// non-finite step is investigated. Results and scale are the same on all ranks, and so are the
// decisions.
Trainer::BadStep Trainer::handle_bad_step(const StepInFlight& step, const StepResult& result) {
  bool dynamic = config_.fp16 && config_.optim.loss_scale <= 0;
  bool overflow = dynamic && std::isfinite(result.loss);
  if (overflow && step.input.loss_scale > config_.optim.min_loss_scale) return {.nan = false};
  std::int64_t most = config_.train.max_consecutive_skips;
  bool too_many = ++skips_in_a_row_ > most && most > 0;
  bool checks = config_.train.check_for_nan_in_loss_and_grad && !overflow;
  if (!checks && !too_many) return {.nan = !overflow};

  std::string found = engine_.find_nonfinite(step.batch.micro_batches, step.input);
  if (found.empty()) found = "the step is finite when run again: a transient fault";
  std::string message = concat("iteration ", step.input.iteration, ": loss ", result.loss,
                               ", gradient norm ", result.grad_norm, "; ", found);
  bool stops = checks && config_.train.nan_policy == NanPolicy::kStop;
  if (stops) {
    failure_ = concat(message, " (--nan-policy skip goes on without such steps)");
  } else if (too_many) {
    failure_ = concat(message, "; ", skips_in_a_row_,
                      " steps in a row were skipped, more than --max-consecutive-skips ", most,
                      "; a smaller --lr or better data may help");
  } else if (reports_) {
    log_warning(message + "; the step is skipped");
  }
  return {.nan = !overflow, .stops_before = stops};
}

bool Trainer::weights_finite() {
  Context& ctx = engine_.model().ctx();
  FiniteProbe probe;
  ScopedValue watching(ctx.probe, &probe);
  ParamStore& store = engine_.model().store();
  for (const Param* param : store.params()) {
    ctx.check("weight", param->name, store.local_value(*param).view);
  }
  return !any_rank(engine_.model().mesh().world().host(), probe.found, "weights");
}

std::optional<std::vector<EvalResult>> Trainer::evaluate(const char* split,
                                                         std::span<const EvalSet> sets) {
  ReadAhead ahead{config_.loader.num_workers, config_.loader.prefetch_factor};
  Group& world = engine_.model().mesh().world().host();
  return evaluate_sets(engine_, split, sets, eval_batch_, ahead, [&] {
    return any_rank(world, stop_ != nullptr && stop_->received() != 0, "stop of an evaluation");
  });
}

void Trainer::interrupt(TrainOutcome& outcome) {
  outcome.reason = StopReason::kSignal;
  outcome.signal = agree(outcome.last_iteration).signal;
}

void Trainer::validate(const StepReport& at, TrainOutcome& outcome) {
  auto results = evaluate("valid", data_.valid);
  if (!results) return interrupt(outcome);
  if (results->empty()) return;
  outcome.evaluations = *results;
  validation_.add(at.iteration, mean_loss(*results));
  if (reports_) reports_->validation(at, *results);
}

void Trainer::test(TrainOutcome& outcome) {
  auto results = evaluate("test", data_.test);
  if (!results) return interrupt(outcome);
  if (reports_) reports_->test(report_after(outcome.last_iteration), *results);
  outcome.evaluations.insert(outcome.evaluations.end(), results->begin(), results->end());
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
  } else if (validation_.exhausted(config_.train.eval.early_stop_patience)) {
    decision[0] = static_cast<std::int32_t>(StopReason::kPatience);
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
  report_saved();
}

void Trainer::report_saved() {
  if (reports_ && saver_->saved() >= 0) reports_->saved(saver_->saved());
}

bool Trainer::validation_due(std::int64_t iteration) const {
  bool due = iteration % std::max<std::int64_t>(config_.train.eval_interval, 1) == 0 &&
             iteration >= config_.train.eval.start_eval_at_iter;
  return config_.train.eval_interval > 0 && !data_.valid.empty() &&
         (due || iteration == iterations_);
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
  start_seconds_ = monotonic_seconds();
  if (config_.train.eval.skip_train) return evaluate_only();
  bool stopping = validation_.exhausted(config_.train.eval.early_stop_patience);
  if (stopping) outcome.reason = StopReason::kPatience;
  for (std::int64_t next = first_iteration_; failure_.empty();) {
    while (!stopping && may_begin(next)) {
      const bool skipped = skips(next);
      stopping = !survives([&] { skipped ? skip(next) : begin(next); });
      if (stopping) break;
      if (skipped) outcome.iterations = next - first_iteration_ + 1;
      ++next;
    }
    if (engine_.in_flight().empty()) break;
    std::optional<StepReport> report = finish_step();
    if (!report) break;
    std::int64_t iteration = report->iteration;
    outcome.iterations = iteration - first_iteration_ + 1;
    if (reports_) reports_->step(*report);
    if (!failure_.empty()) break;
    check_weights(iteration);
    report_memory(iteration);
    if (validation_due(iteration) && !survives([&] { validate(*report, outcome); })) break;
    if (stopping || iteration == iterations_) continue;
    Agreement agreed = agree(iteration);
    outcome.reason = agreed.reason;
    outcome.signal = agreed.signal;
    stopping = agreed.reason != StopReason::kFinished;
    if (!stopping) save_when_due(iteration, agreed);
  }
  outcome.last_iteration = first_iteration_ - 1 + outcome.iterations;
  if (data_error_) {
    failure_ = data_error_->what();
    outcome.failure_kind = data_error_->kind();
  }
  save_last(outcome);
  bool ended = outcome.reason <= StopReason::kPatience && failure_.empty();
  if (ended && outcome.iterations > 0) test(outcome);
  finish(outcome);
  return outcome;
}

// Weights that are not finite replace no checkpoint.
void Trainer::save_last(TrainOutcome& outcome) {
  if (saver_ == nullptr) return;
  std::string what = "nothing was trained yet, so nothing is saved";
  if (!failure_.empty() && !weights_finite()) {
    saver_->complete();
    what = "the weights are not finite any more, so they are not saved";
  } else if (outcome.iterations > 0) {
    outcome.save_problem = saver_->finish(state_after(outcome.last_iteration));
    report_saved();
    what = concat("the state after iteration ", outcome.last_iteration, " is saved in ",
                  config_.checkpoint.save);
    if (!outcome.save_problem.empty()) what = outcome.save_problem;
  }
  if (!failure_.empty()) failure_ += "; " + what;
}

TrainOutcome Trainer::evaluate_only() {
  TrainOutcome outcome;
  outcome.last_iteration = first_iteration_ - 1;
  validate(report_after(outcome.last_iteration), outcome);
  if (outcome.reason == StopReason::kFinished) test(outcome);
  finish(outcome);
  return outcome;
}

void Trainer::finish(TrainOutcome& outcome) {
  outcome.seconds = monotonic_seconds() - start_seconds_;
  outcome.consumed_samples = consumed_samples_ - begin_.consumed_samples;
  outcome.consumed_tokens = consumed_tokens_ - begin_.consumed_tokens;
  outcome.skipped = skipped_ - begin_.skipped;
  outcome.validation = validation_;
  outcome.failure = failure_;
  if (!reports_) return;
  reports_->finish();
  outcome.curves = reports_->curves();
}

}  // namespace bev
