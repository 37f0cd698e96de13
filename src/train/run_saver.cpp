#include "train/run_saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace bev {

namespace {
// Bytes that the system could hand out without taking from anybody; 0 where it does not say.
double free_memory() {
  constexpr std::string_view kKey = "MemAvailable:";
  if (!path_exists("/proc/meminfo")) return 0;
  for (const std::string& line : split(read_file("/proc/meminfo"), '\n')) {
    if (line.starts_with(kKey)) return std::stod(line.substr(kKey.size())) * 1024;
  }
  return 0;
}
}  // namespace

std::size_t staging_bytes(const CheckpointConfig& config, std::int64_t processes) {
  constexpr double kLeast = 256.0 * 1024 * 1024;
  if (config.save_staging_mb > 0) return static_cast<std::size_t>(config.save_staging_mb) << 20;
  double share = free_memory() / 2 / static_cast<double>(processes);
  return static_cast<std::size_t>(std::max(share, kLeast));
}

RunSaver::RunSaver(Engine& engine, Storage& storage, StagingPool& pool,
                   const CheckpointConfig& config, std::vector<ConfigEntry> run)
    : engine_(engine),
      config_(config),
      saver_(engine, storage, pool,
             {.folder = config.save,
              .config = std::move(run),
              .with_optimizer = config.save_optim,
              .retention = {config.save_retain_interval, config.most_recent_k}}),
      begun_seconds_(monotonic_seconds()) {}

bool RunSaver::due(std::int64_t iteration) const {
  return config_.save_interval > 0 && iteration % config_.save_interval == 0;
}

bool RunSaver::wants_save(std::int64_t iteration) const {
  double minutes = (monotonic_seconds() - begun_seconds_) / 60;
  bool late = config_.save_interval_mins > 0 && minutes >= config_.save_interval_mins;
  return late || (retry_at_ >= 0 && iteration >= retry_at_);
}

void RunSaver::advance() {
  if (std::optional<SaveOutcome> outcome = saver_.advance()) handle(*outcome);
}

void RunSaver::save(const TrainingState& state) {
  if (saver_.in_flight()) handle(saver_.finish());
  begun_ = state.iteration;
  begun_seconds_ = monotonic_seconds();
  retry_at_ = -1;
  saver_.begin(state);
  if (!config_.async_save) handle(saver_.finish());
}

std::string RunSaver::finish(const TrainingState& state) {
  constexpr int kTries = 3;
  if (saver_.in_flight()) handle(saver_.finish());
  std::string problem;
  for (int i = 0; i < kTries && saved_ != state.iteration; ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::seconds(i));
    begun_seconds_ = monotonic_seconds();
    saver_.begin(state);
    SaveOutcome outcome = saver_.finish();
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

void RunSaver::handle(const SaveOutcome& outcome) {
  bool tells = engine_.mesh().world().rank() == 0;
  if (outcome.problem.empty()) {
    saved_ = outcome.iteration;
    if (!tells) return;
    log_info(fmt::format("saved iteration {} to {} in {:.2f} s", outcome.iteration, config_.save,
                         monotonic_seconds() - begun_seconds_));
    return;
  }
  if (config_.save_retry_interval > 0) {
    retry_at_ = outcome.iteration + config_.save_retry_interval;
  }
  if (!tells) return;
  std::string again = retry_at_ >= 0 ? concat(" and tries again after iteration ", retry_at_) : "";
  log_warning(concat("iteration ", outcome.iteration, " is not saved: ", outcome.problem,
                     last_good(), "; training goes on", again));
}

}  // namespace bev
