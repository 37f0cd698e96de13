// The global batches of a run, in order; each rank reads and builds only its own micro-batches.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/batch_file.h"
#include "data/dataset.h"
#include "data/sample_order.h"
#include "parallel/step.h"
#include "train/batch_schedule.h"
#include "train/config.h"
#include "train/sample_reader.h"

namespace bev {

// What a run reads; shared by the ranks of a process.
struct RunData {
  std::shared_ptr<const Dataset> train, valid;  // valid may be null
  std::shared_ptr<const SampleOrder> train_order, valid_order;
  std::shared_ptr<const std::vector<GlobalBatch>> replay;  // instead of them
};
// Samples of a run, as Megatron counts them: the order of token files depends on it.
struct SampleNeeds {
  std::int64_t train = 0;
  std::optional<std::int64_t> valid;  // absent: there is no validation
};
SampleNeeds sample_needs(const TrainConfig& train, const BatchSchedule& batches);

// Opens what the configuration names (its text as the token files of prepare_text()); Error when
// there is not enough of it. The orders follow `order` and the number of samples that each dataset
// has.
RunData open_data(const DataConfig& config, std::int64_t vocab_size, std::uint64_t seed,
                  const SampleNeeds& needs, const SampleOrderSpec& order);

// One rank's iterations, in order.
class Loader {
 public:
  // Begins with the iteration at consumed_samples.
  Loader(const Context& ctx, std::shared_ptr<const Dataset> data,
         std::shared_ptr<const SampleOrder> order, const BatchSchedule& batches,
         std::int64_t consumed_samples, const ReadAhead& ahead, const FutureSpec& future);

  StepBatch next(Context& ctx);
  // Where a loader would have to begin to go on from here, on any number of ranks.
  std::int64_t consumed_samples() const { return consumed_samples_; }

 private:
  BatchSchedule batches_;
  std::int64_t seq_length_, consumed_samples_;
  FutureSpec future_;
  SampleReader reader_;
};

// The batches that --token-batches or --batches names, which a run takes in order.
RunData open_replay_data(const DataConfig& config, const BatchFormat& format);
// A batch of a replay, the loss as in `score`.
StepBatch replay_step(Context& ctx, const GlobalBatch& batch, std::int64_t micro_batch_size,
                      const FutureSpec& future);

}  // namespace bev
