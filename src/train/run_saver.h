// When a run saves, and what it does about saves that fail. A failure never ends the training: it
// is told, the last good checkpoint stays, and the save is tried again some iterations later.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/saver.h"
#include "train/checkpoint_config.h"

namespace bev {

// Half of the memory that is free, or what --save-staging-mb says, for each of `processes`.
std::size_t staging_bytes(const CheckpointConfig& config, std::int64_t processes);

class RunSaver {
 public:
  RunSaver(Engine& engine, Storage& storage, StagingPool& pool, const CheckpointConfig& config,
           std::vector<ConfigEntry> run);

  // By --save-interval, which all ranks know beforehand.
  bool due(std::int64_t iteration) const;
  // By the clock or after a failure; a wish of this rank.
  bool wants_save(std::int64_t iteration) const;
  // What Saver has of the same name; advance() tells an outcome.
  bool pending() const { return saver_.pending(); }
  void advance();
  // Of the state after an iteration; waits for the save before it.
  void save(const TrainingState& state);
  // Saves the last state of the run, if that is not done, and waits for it; tries a few times.
  // Returns why it could not be saved.
  std::string finish(const TrainingState& state);

 private:
  void handle(const SaveOutcome& outcome);
  std::string last_good() const;

  Engine& engine_;
  CheckpointConfig config_;
  Saver saver_;
  double begun_seconds_ = 0;                              // of the last save
  std::int64_t begun_ = -1, saved_ = -1, retry_at_ = -1;  // iterations; -1: none
};

}  // namespace bev
