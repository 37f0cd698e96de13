// --token-batches: the file's batches as the run's data and length.
#pragma once

#include <optional>

#include "app/run_config.h"
#include "base/error.h"
#include "train/loader.h"

namespace bev {

struct Replay {
  RunData data;                  // empty when there is none
  std::optional<Error> problem;  // the file cannot be read; throw it after the broken rules
};

// Reads the file that --token-batches names and fills in the batch sizes, the length where none is
// given, and the sequence length. Call before RunConfig::resolve(). Ids are checked against the
// vocabulary where it is known.
Replay open_replay(RunConfig& run);

}  // namespace bev
