#include "train/background_hf_export.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/weight_source.h"

namespace bev {

struct BackgroundHfExport::State {
  std::string folder;
  ModelConfig model;
  std::vector<ExportFile> files;

  std::mutex mutex;
  std::condition_variable changed;
  std::string waiting;  // step to export next; "": none
  bool working = false, closing = false;
  std::optional<Error> failure;  // of the last export
  std::thread worker;

  void run_export(const std::string& step_folder) {
    CheckpointReader reader(step_folder);
    WeightMap map(model);
    CheckpointWeights weights(reader);
    weights.check(map.params());
    export_hf(map, weights, {folder, std::nullopt, 1}, files);
  }

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return closing || !waiting.empty(); });
      if (waiting.empty()) return;
      std::string step = std::exchange(waiting, "");
      working = true;
      lock.unlock();
      std::optional<Error> problem;
      try {
        run_export(step);
        log_info(concat("exported ", step, " to ", folder));
      } catch (const Error& error) {
        problem = error;
        log_warning(concat("--save-hf ", folder, ": ", step, " is not exported: ", error.what()));
      }
      lock.lock();
      failure = problem;
      working = false;
      changed.notify_all();
    }
  }
};

BackgroundHfExport::BackgroundHfExport(std::string folder, ModelConfig model,
                                       std::vector<ExportFile> files)
    : state_(std::make_unique<State>()) {
  state_->folder = std::move(folder);
  state_->model = std::move(model);
  state_->files = std::move(files);
  state_->worker = std::thread([state = state_.get()] { state->work(); });
}

BackgroundHfExport::~BackgroundHfExport() {
  {
    std::lock_guard lock(state_->mutex);
    state_->closing = true;
    state_->waiting.clear();
  }
  state_->changed.notify_all();
  state_->worker.join();
}

void BackgroundHfExport::add(const std::string& step_folder) {
  std::lock_guard lock(state_->mutex);
  state_->waiting = step_folder;
  state_->changed.notify_all();
}

void BackgroundHfExport::finish() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return !state_->working && state_->waiting.empty(); });
  if (state_->failure) throw *state_->failure;
}

}  // namespace bev
