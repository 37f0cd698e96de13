// --token-batches and --batches: replays the batches of a file as the data and the length of a run.
#pragma once

#include <optional>

#include "app/run_config.h"
#include "base/error.h"
#include "train/loader.h"

namespace bev {

struct Replay {
  RunData data;                  // empty if there is no replay
  std::optional<Error> problem;  // the file cannot be read

  // Throws if the file is invalid, or does not fit the model. Called after broken rules were
  // reported.
  void check(const ModelConfig& model) const;
};

// Opens the file of the flag and fills in the batch sizes, the sequence length, and the run length
// if none is given. Called before RunConfig::resolve(). Token ids are checked if the vocabulary
// size is known.
Replay open_replay(RunConfig& run);

}  // namespace bev
