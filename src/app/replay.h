// --token-batches and --batches: the file's batches as the run's data and length.
#pragma once

#include <optional>

#include "app/run_config.h"
#include "base/error.h"
#include "train/loader.h"

namespace bev {

struct Replay {
  RunData data;                  // empty when there is none
  std::optional<Error> problem;  // the file cannot be read

  // Throws what is wrong with the file, by itself or for the model; call after the broken rules
  // were said.
  void check(const ModelConfig& model) const;
};

// Reads the file that the flag names and fills in the batch sizes, the length where none is
// given, and the sequence length. Call before RunConfig::resolve(). Ids are checked against the
// vocabulary where it is known.
Replay open_replay(RunConfig& run);

}  // namespace bev
