// Compares what the engine generates under different batch sizes, and with the forward that
// training runs over whole sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "infer/engine.h"

namespace bev {

struct ExactReport {
  std::int64_t tokens = 0;            // compared: those of a run one by one, for each other run
  std::int64_t different_tokens = 0;  // unlike those of the run one by one
  // Between log-probabilities of equal tokens after equal tokens; the whole forward is a run too.
  double max_abs_logprob_diff = 0, mean_abs_logprob_diff = 0;
  std::vector<std::int64_t> batch_sizes;  // of the runs
};

// Runs the requests one by one, then in batches, with prompts whole and in chunks, with the prefix
// cache off, cold and warm. Collective; complete on world rank 0.
ExactReport check_exact(RankModel& model, std::span<const Request> requests,
                        const InferenceOptions& options);

}  // namespace bev
