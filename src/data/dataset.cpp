#include "data/dataset.h"

#include <vector>

namespace bev {

TokenSample WindowDataset::sample(std::int64_t index) const {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq_length() + 1));
  window(index, tokens);
  return window_sample(tokens);
}

void join_batch(const Dataset& data, std::span<TokenSample> batch) {
  const std::vector<TokenSample> plain(batch.begin(), batch.end());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    data.join(batch[i], plain[(i > 0 ? i : plain.size()) - 1]);
  }
}

}  // namespace bev
