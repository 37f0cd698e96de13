// Random models, layouts and batches. A case is named by seed and index, so any one can be drawn
// again by itself.
#pragma once

#include <cstdint>
#include <string>

#include "app/run_config.h"

namespace bev::test {

struct RandomRun {
  RunConfig config;  // model, parallel, batch and data.seq_length; not resolved
  std::int64_t samples = 1;

  // Micro-batches of each data-parallel rank; the last may be short or empty.
  std::int64_t micro_batches() const;
};

// Small enough to run in milliseconds, at most 8 ranks. Many break a rule.
RandomRun random_run(std::uint64_t seed, std::uint64_t index);

// The flags that differ from the defaults, as on a command line.
std::string flags_text(RunConfig config);

}  // namespace bev::test
