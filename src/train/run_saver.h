// When a run saves, and what it does about saves that fail. A failure never ends the training: it
// is told, the last good checkpoint stays, and the save is tried again some iterations later.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/step_saver.h"
#include "train/checkpoint_config.h"
#include "train/hf_beside.h"

namespace bev {

// Half of the memory that is free, or what --save-staging-mb says, for each of `processes`.
std::size_t staging_bytes(const CheckpointConfig& config, std::int64_t processes);

class RunSaver {
 public:
  RunSaver(Engine& engine, Storage& storage, StagingPool& pool, const CheckpointConfig& config,
           std::vector<ConfigEntry> run, HfBeside* beside = nullptr);

  // Whether the state after an iteration is to be saved: by an interval, which all ranks know
  // beforehand, or after want_save().
  bool due(std::int64_t iteration) const;
  // By the clock or after a failure: a wish of this rank, which comes true when all ranks are told.
  bool wants_save(std::int64_t iteration) const;
  void want_save() { wanted_ = true; }
  // As StepSaver's; advance() tells an outcome.
  bool pending() const { return current_ != nullptr && current_->pending(); }
  void advance();
  // Of the state after an iteration; waits for the save before it.
  void save(const TrainingState& state);
  // Waits for the end of the save in flight, where there is one.
  void complete();
  // Saves the last state of the run, if that is not done, and waits for it; tries a few times.
  // Returns why it could not be saved.
  std::string finish(const TrainingState& state);

 private:
  bool lasting_due(std::int64_t iteration) const;
  bool passing_due(std::int64_t iteration) const;
  void handle(const SaveOutcome& outcome);
  std::string last_good() const;

  Engine& engine_;
  CheckpointConfig config_;
  HfBeside* beside_;                              // gets what is saved; null: nobody does
  std::unique_ptr<StepSaver> lasting_, passing_;  // null where not asked for
  StepSaver* current_ = nullptr;                  // the one in flight
  bool wanted_ = false;
  double begun_seconds_ = 0;                 // of the last lasting save
  std::int64_t saved_ = -1, retry_at_ = -1;  // iterations; -1: none
};

}  // namespace bev
