// Resuming a run from a checkpoint.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "parallel/engine.h"
#include "train/checkpoint_config.h"

namespace bev {

// State of the run after loading, read before anything is loaded; a new run if it cannot be read,
// which resume() will report.
TrainingState position_to_load(const CheckpointConfig& config);

// The model of the checkpoint to load, by its manifest; the defaults if there is none that can be
// read.
struct LoadedModel {
  std::int64_t vocab_size = 0;
  bool experts = false;
};
LoadedModel model_to_load(const CheckpointConfig& config);

// Loads a checkpoint into the engine and returns the state to continue from; nullopt for a run that
// starts at iteration 0. All ranks must call it, and load the same step. `run` is the
// configuration, which is compared with that of the checkpoint.
std::optional<TrainingState> resume(Engine& engine, const CheckpointConfig& config,
                                    const std::vector<ConfigEntry>& run);

}  // namespace bev
