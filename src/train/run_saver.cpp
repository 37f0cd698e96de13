#include "train/run_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "checkpoint/local_tier.h"
#include "checkpoint/saver.h"

namespace bev {

std::size_t staging_bytes(const CheckpointConfig& config, std::int64_t processes) {
  constexpr std::size_t kLeast = std::size_t{64} << 20;
  if (!config.async_save) return kLeast;  // synchronous saves need no staging of a whole copy
  if (config.save_staging_mb > 0) return static_cast<std::size_t>(config.save_staging_mb) << 20;
  double share = free_host_memory() / 2 / static_cast<double>(processes);
  return std::max(static_cast<std::size_t>(share), kLeast);
}

namespace {
std::unique_ptr<StepSaver> passing_saver(Engine& engine, Storage& storage, StagingPool& pool,
                                         const CheckpointConfig& config, SaverOptions options) {
  if (config.non_persistent_ckpt_type == NonPersistentKind::kLocal) {
    options.folder = config.non_persistent_local_ckpt_dir;
    std::int64_t jump = config.replication ? config.replication_jump : 0;
    return std::make_unique<LocalSaver>(engine, storage, pool, std::move(options), jump);
  }
  options.folder = config.non_persistent_global_folder(config.save);
  return std::make_unique<Saver>(engine, storage, pool, std::move(options),
                                 Retention{.most_recent = 1});
}
}  // namespace

RunSaver::RunSaver(Engine& engine, Storage& storage, StagingPool& pool,
                   const CheckpointConfig& config, std::vector<ConfigEntry> run,
                   BackgroundHfExport* hf_export)
    : engine_(engine), config_(config), hf_export_(hf_export), begun_seconds_(monotonic_seconds()) {
  SaverOptions options{config.save, std::move(run), config.save_optim};
  if (!config.save.empty()) {
    Retention retention{config.save_retain_interval, config.most_recent_k, config.keep_best};
    lasting_ = std::make_unique<Saver>(engine, storage, pool, options, retention);
  }
  if (config.non_persistent_save_interval > 0) {
    passing_ = passing_saver(engine, storage, pool, config, options);
  }
  if (!config.async_save) return;
  bool by_interval = config.save_interval > 0 || config.save_interval_mins > 0;
  if (passing_) {
    passing_->make_staging();
  } else if (lasting_ && by_interval) {
    lasting_->make_staging();
  }
}

bool RunSaver::lasting_due(std::int64_t iteration) const {
  return lasting_ && config_.save_interval > 0 && iteration % config_.save_interval == 0;
}

bool RunSaver::passing_due(std::int64_t iteration) const {
  return passing_ && iteration % config_.non_persistent_save_interval == 0;
}

bool RunSaver::due(std::int64_t iteration) const {
  return wanted_ || lasting_due(iteration) || passing_due(iteration);
}

bool RunSaver::wants_save(std::int64_t iteration) const {
  if (!lasting_) return false;
  double minutes = (monotonic_seconds() - begun_seconds_) / 60;
  bool late = config_.save_interval_mins > 0 && minutes >= config_.save_interval_mins;
  return late || (retry_at_ >= 0 && iteration >= retry_at_);
}

void RunSaver::advance() {
  if (current_ == nullptr) return;
  if (std::optional<SaveOutcome> outcome = current_->advance()) handle(*outcome);
}

void RunSaver::complete() {
  if (current_ != nullptr) handle(current_->finish());
}

void RunSaver::begin(StepSaver& saver, TrainingState& state) {
  current_ = &saver;
  state.validation.best_steps = best_.best_steps;
  state.validation.best_step_losses = best_.best_step_losses;
  if (current_ == lasting_.get()) state.validation.keep_step(state.iteration, config_.keep_best);
  best_with_current_ = state.validation;
  current_->begin(state);
}

void RunSaver::save(TrainingState state) {
  complete();
  bool lasting = wanted_ || lasting_due(state.iteration);
  if (lasting) {
    wanted_ = false;
    begun_seconds_ = monotonic_seconds();
    retry_at_ = -1;
  }
  begin(lasting ? *lasting_ : *passing_, state);
  if (!config_.async_save) complete();
}

std::string RunSaver::finish(TrainingState state) {
  constexpr int kTries = 3;
  complete();
  if (!lasting_) return "";
  std::string problem;
  for (int i = 0; i < kTries && saved_ != state.iteration; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::seconds(i));
    begin(*lasting_, state);
    SaveOutcome outcome = current_->finish();
    problem = outcome.problem;
    if (problem.empty()) handle(outcome);
  }
  if (problem.empty()) return "";
  return concat("--save ", config_.save, ": the last iteration, ", state.iteration,
                ", is not saved: ", problem, last_good());
}

std::string RunSaver::last_good() const {
  if (saved_ < 0) return "";
  return concat("; the last checkpoint is of iteration ", saved_);
}

// Called when the save in flight is over.
void RunSaver::handle(const SaveOutcome& outcome) {
  bool lasting = std::exchange(current_, nullptr) == lasting_.get();
  bool tells = engine_.model().mesh().world().rank() == 0;
  if (outcome.problem.empty()) {
    if (lasting) {
      saved_ = outcome.iteration;
      best_ = best_with_current_;
    }
    if (lasting && hf_export_ != nullptr) hf_export_->add(step_folder(config_.save, saved_));
    if (!tells) return;
    log_info(fmt::format("saved iteration {} to {} in {:.3f} s; training waited {:.3f} s",
                         outcome.iteration, lasting ? config_.save : "the non-persistent folder",
                         outcome.seconds, outcome.waited_seconds));
    return;
  }
  if (lasting && config_.save_retry_interval > 0) {
    retry_at_ = outcome.iteration + config_.save_retry_interval;
  }
  if (!tells) return;
  std::string again =
      lasting && retry_at_ >= 0 ? concat(" and tries again after iteration ", retry_at_) : "";
  log_warning(concat("iteration ", outcome.iteration, " is not saved: ", outcome.problem,
                     last_good(), "; training goes on", again));
}

}  // namespace bev
