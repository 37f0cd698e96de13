// The beginning of a run from a checkpoint.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "parallel/engine.h"
#include "train/checkpoint_config.h"

namespace bev {

// The step that --load means; absent when there is none and the run begins anew. Error(kInput)
// when it must be there.
std::optional<std::int64_t> step_to_load(const CheckpointConfig& config);
// Where the run will stand after loading, before anything is loaded; a new run where it cannot be
// read, which resume() will say.
TrainingState position_to_load(const CheckpointConfig& config);

// Loads the step into the engine; what the run goes on from, absent for one that begins at
// iteration 0. All ranks call it and load the same step. `run` is the configuration, compared with
// the checkpoint's.
std::optional<TrainingState> resume(Engine& engine, const CheckpointConfig& config,
                                    const std::vector<ConfigEntry>& run);

}  // namespace bev
