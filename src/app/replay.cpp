#include "app/replay.h"

#include <algorithm>

#include "models/model.h"

namespace bev {

Replay open_replay(RunConfig& run) {
  Replay replay;
  if (run.data.replay_flag().empty()) return replay;
  constexpr std::int64_t kAnyId = std::int64_t{1} << 31;
  try {
    BatchFormat format = batch_format(run.model);
    if (format.vocab_size == 0) format.vocab_size = kAnyId;
    replay.data = open_replay_data(run.data, format);
  } catch (const Error& error) {
    replay.problem = error;
    return replay;
  }
  for (const GlobalBatch& batch : *replay.data.replay) {
    run.batch.replay.push_back(std::ssize(batch.samples));
    run.data.seq_length = std::max(run.data.seq_length, batch.columns);
  }
  if (run.train.train_iters == 0 && run.train.train_samples == 0) {
    run.train.train_iters = static_cast<std::int64_t>(run.batch.replay.size());
  }
  return replay;
}

void Replay::check(const ModelConfig& model) const {
  if (problem) throw *problem;
  if (!data.replay) return;
  for (const GlobalBatch& batch : *data.replay) check_windows(model, batch);
}

}  // namespace bev
