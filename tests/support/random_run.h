// Random models, layouts and batches. A case is determined by seed and index, so that each can be
// reproduced separately.
#pragma once

#include <cstdint>
#include <string>

#include "app/run_config.h"

namespace bev::test {

struct RandomRun {
  RunConfig config;  // model, parallel, batch and data.seq_length; not resolved
  std::int64_t samples = 1;

  // Micro-batches per data-parallel rank; the last may be short or empty.
  std::int64_t micro_batches() const;
};

// Runs in milliseconds, with at most 8 ranks. Many cases break a rule.
RandomRun random_run(std::uint64_t seed, std::uint64_t index);

// Flags that differ from the defaults, as on a command line.
std::string flags_text(RunConfig config);

}  // namespace bev::test
