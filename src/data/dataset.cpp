#include "data/dataset.h"

#include <vector>

namespace bev {

TokenSample WindowDataset::sample(std::int64_t index) const {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq_length() + 1));
  window(index, tokens);
  return window_sample(tokens);
}

}  // namespace bev
