#include "app/replay.h"

#include <algorithm>

namespace bev {

Replay open_replay(RunConfig& run) {
  Replay replay;
  if (run.data.token_batches.empty()) return replay;
  constexpr std::int64_t kAnyId = std::int64_t{1} << 31;
  try {
    replay.data =
        open_data(run.data, run.model.vocab_size > 0 ? run.model.vocab_size : kAnyId, 0, {}, {});
  } catch (const Error& error) {
    replay.problem = error;
    return replay;
  }
  for (const std::vector<TokenRow>& batch : replay.data.replay->batches) {
    run.batch.replay.push_back(static_cast<std::int64_t>(batch.size()));
    for (const TokenRow& row : batch) {
      run.data.seq_length = std::max(run.data.seq_length, static_cast<std::int64_t>(row.size()));
    }
  }
  if (run.train.train_iters == 0 && run.train.train_samples == 0) {
    run.train.train_iters = static_cast<std::int64_t>(run.batch.replay.size());
  }
  return replay;
}

}  // namespace bev
