// The beginning of a run from a checkpoint.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "parallel/engine.h"
#include "train/checkpoint_config.h"

namespace bev {

// Where the run will stand after loading, before anything is loaded; a new run where it cannot be
// read, which resume() will say.
TrainingState position_to_load(const CheckpointConfig& config);

// Loads the step into the engine; what the run goes on from, absent for one that begins at
// iteration 0. All ranks call it and load the same step. `run` is the configuration, compared with
// the checkpoint's.
std::optional<TrainingState> resume(Engine& engine, const CheckpointConfig& config,
                                    const std::vector<ConfigEntry>& run);

}  // namespace bev
