// Decides when a run saves and handles failed saves. A failure never ends the training: it is
// logged, the last good checkpoint stays, and the save is retried some iterations later.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/step_saver.h"
#include "train/background_hf_export.h"
#include "train/checkpoint_config.h"

namespace bev {

// Staging memory per process: half of the free memory divided by `processes`, or --save-staging-mb.
std::size_t staging_bytes(const CheckpointConfig& config, std::int64_t processes);

class RunSaver {
 public:
  RunSaver(Engine& engine, Storage& storage, StagingPool& pool, const CheckpointConfig& config,
           std::vector<ConfigEntry> run, BackgroundHfExport* hf_export = nullptr);

  // True if the state after an iteration must be saved: by an interval, which all ranks know in
  // advance, or after want_save().
  bool due(std::int64_t iteration) const;
  // Request of this rank, by the clock or after a failure; want_save() must then be called on all
  // ranks.
  bool wants_save(std::int64_t iteration) const;
  void want_save() { wanted_ = true; }
  // Like StepSaver; advance() also handles the outcome.
  bool pending() const { return current_ != nullptr && current_->pending(); }
  void advance();
  // The last iteration whose lasting checkpoint is complete; -1: none of this process.
  std::int64_t saved() const { return saved_; }
  // The best steps so far, of the run that is resumed.
  void go_on_from(const ValidationState& validation) { best_ = validation; }
  // Starts saving the state after an iteration; waits for the previous save.
  void save(TrainingState state);
  // Waits for the save in flight, if any.
  void complete();
  // Saves the final state of the run if that is not done, and waits for it; retries a few times.
  // Returns the reason if it failed, else "".
  std::string finish(TrainingState state);

 private:
  bool lasting_due(std::int64_t iteration) const;
  bool passing_due(std::int64_t iteration) const;
  // Begins a save, with the best steps as they will be when it has succeeded.
  void begin(StepSaver& saver, TrainingState& state);
  void handle(const SaveOutcome& outcome);
  std::string last_good() const;

  Engine& engine_;
  CheckpointConfig config_;
  BackgroundHfExport* hf_export_;                 // exports what is saved; null: no export
  std::unique_ptr<StepSaver> lasting_, passing_;  // null if not requested
  StepSaver* current_ = nullptr;                  // the save in flight
  ValidationState best_, best_with_current_;      // only its best steps are used
  bool wanted_ = false;
  double begun_seconds_ = 0;                 // start of the last lasting save
  std::int64_t saved_ = -1, retry_at_ = -1;  // iterations; -1: none
};

}  // namespace bev
