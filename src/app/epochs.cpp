#include "app/epochs.h"

#include <utility>

#include "app/options.h"
#include "base/error.h"
#include "base/text.h"
#include "train/loader.h"

namespace bev {

namespace {
// Stands for the length until the data is known: long enough for every schedule.
constexpr std::int64_t kUnknownLength = std::int64_t{1} << 30;
}  // namespace

bool by_epochs(const TrainConfig& train) {
  return train.epochs > 0 && !train.dry_run && !train.eval.skip_train;
}

std::vector<std::string> check_epochs(RunConfig& run, const Options& options) {
  TrainConfig& train = run.train;
  if (train.epochs <= 0) return {};
  const char* other = options.given("train-iters")     ? "--train-iters"
                      : options.given("train-samples") ? "--train-samples"
                                                       : nullptr;
  if (other != nullptr && options.given("epochs")) {
    return {concat("--epochs: ", train.epochs, " and ", other, " both set the length; keep one")};
  }
  if (other != nullptr) {
    train.epochs = 0;
    return {};
  }
  if (by_epochs(train)) {
    train.train_iters = kUnknownLength;
    train.train_samples = 0;
  }
  if (run.data.mock_data) return {"--epochs: made-up data has no end; give --train-iters"};
  if (run.data.replay_flag().empty()) return {};
  return {"--epochs: a replay is one pass over its file; leave it out"};
}

std::shared_ptr<const Dataset> resolve_epochs(RunConfig& run, const RunConfig& given) {
  double epochs = run.train.epochs;
  DataLength length = samples_of_epochs(run.data, epochs, run.model.vocab_size,
                                        static_cast<std::uint64_t>(run.runtime.seed));
  BatchSchedule batches(run.batch.spec(run.parallel.batch_ranks(), run.data.seq_length));
  std::int64_t iterations = batches.iterations_within(length.samples);
  bool rest = batches.samples_after(iterations) < length.samples;
  if (rest && !length.at_most) ++iterations;
  BEV_CHECK(iterations > 0, ErrorKind::kInput, "--epochs: ", epochs,
            " passes over the training data are ", length.samples, " samples of ",
            run.data.seq_length,
            " tokens, less than one global batch; give more, or smaller "
            "batches or samples");
  DataConfig data = std::move(run.data);
  run = given;
  run.data = std::move(data);
  run.train.train_iters = iterations;
  return length.conversations;
}

}  // namespace bev
