// The global batches of a run, in order; each rank builds only its own micro-batches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bridge/token_file.h"
#include "data/batch.h"
#include "data/dataset.h"
#include "train/batch_schedule.h"
#include "train/config.h"

namespace bev {

struct StepBatch {
  std::vector<MicroBatch> micro_batches;  // of this rank
  std::int64_t samples = 0;               // of the global batch
  std::int64_t tokens = 0;
  double squared_lengths = 0;  // sum over its sequences
};

// What a run reads; shared by the ranks of a process.
struct RunData {
  std::shared_ptr<const Dataset> train, valid;  // valid may be null
  std::shared_ptr<const TokenBatches> replay;   // instead of them
};
// Opens what the configuration names; Error when there is not enough for one sample.
RunData open_data(const DataConfig& config, std::int64_t vocab_size, std::uint64_t seed,
                  bool validation);

// The iteration that starts at consumed_samples.
StepBatch load_step(Context& ctx, const Dataset& data, std::int64_t consumed_samples,
                    const BatchSize& size, std::int64_t micro_batch_size);
// Batch `index` of a replay, the loss as in `score`.
StepBatch replay_step(Context& ctx, const TokenBatches& replay, std::int64_t index,
                      std::int64_t micro_batch_size);

}  // namespace bev
