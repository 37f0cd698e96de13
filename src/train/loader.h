// Data loader: the global batches of a run in order; each rank reads and builds only its
// micro-batches.
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

// A set of samples that a run is evaluated on.
struct EvalSet {
  std::string name;  // "": all data of its split
  std::shared_ptr<const Dataset> data;
  std::shared_ptr<const SampleOrder> order;
  std::int64_t samples = 0;  // of one evaluation
};

// Data of a run, shared by the ranks of a process.
struct RunData {
  std::shared_ptr<const Dataset> train;  // null if nothing is trained
  std::shared_ptr<const SampleOrder> train_order;
  double epoch_samples = 0;          // training samples of one pass over the data; 0: unknown
  std::vector<EvalSet> valid, test;  // may be empty
  std::shared_ptr<const std::vector<GlobalBatch>> replay;  // instead of datasets
  bool needs_reference = false;  // preferences without log-probabilities of a reference
};

// Number of samples of a run by Megatron's rule, on which the order of token files depends.
struct SampleNeeds {
  std::optional<std::int64_t> train;        // nullopt: no training
  std::optional<std::int64_t> valid, test;  // nullopt: no validation, no test
  std::int64_t evaluation = 0;              // samples of one evaluation
  EvalConfig eval = {};
  EvalBatch batch = {};                                    // of evaluations
  std::shared_ptr<const Dataset> conversations = nullptr;  // for training, if they are open already
  bool by_epochs = false;  // the data is taken again after one pass, without weights too
};
SampleNeeds sample_needs(const TrainConfig& train, const BatchSchedule& batches,
                         const EvalBatch& batch);

// Opens the data of the configuration (text as the token files of prepare_text()); throws Error if
// there is not enough. The orders follow `order` and the number of samples of each dataset.
RunData open_data(const DataConfig& config, std::int64_t vocab_size, std::uint64_t seed,
                  const SampleNeeds& needs, const SampleOrderSpec& order);
// Samples of `epochs` passes over the training data, as open_data() would read it.
struct DataLength {
  std::int64_t samples = 0;
  bool at_most = false;                          // the order of the data ends there
  std::shared_ptr<const Dataset> conversations;  // opened for it; null for token files
};
DataLength samples_of_epochs(const DataConfig& config, double epochs, std::int64_t vocab_size,
                             std::uint64_t seed);

// Ranks between which batches are divided by the order of their samples; with dynamic context
// parallelism every rank reads all of them.
std::int64_t batch_ranks(const MeshShape& mesh);

// The iterations of one rank, in order.
class Loader {
 public:
  // Starts with the iteration at consumed_samples.
  Loader(const Context& ctx, std::shared_ptr<const Dataset> data,
         std::shared_ptr<const SampleOrder> order, const BatchSchedule& batches,
         std::int64_t consumed_samples, const ReadAhead& ahead, const MtpSpec& mtp);

  StepBatch next(Context& ctx);
  // Position at which a new loader would continue, on any number of ranks.
  std::int64_t consumed_samples() const { return consumed_samples_; }

 private:
  StepBatch next_shared(Context& ctx);

  BatchSchedule batches_;
  std::int64_t seq_length_, consumed_samples_;
  MtpSpec mtp_;
  SampleReader reader_;
};

// Opens the batches of --token-batches or --batches, which a run takes in order.
RunData open_replay_data(const DataConfig& config, const BatchFormat& format);
// One batch of a replay, with the loss as in `score`.
StepBatch replay_step(Context& ctx, const GlobalBatch& batch, std::int64_t micro_batch_size,
                      const MtpSpec& mtp);

}  // namespace bev
