// Dataset interface: numbered samples of seq_length tokens in an order that is a pure function of
// the seed. The data state of a run is therefore one number, the index of the next sample.
#pragma once

#include <cstdint>
#include <span>

#include "data/batch.h"

namespace bev {

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t seq_length() const = 0;
  // Number of samples; for an endless dataset, those of one epoch (0 if there is not enough data).
  virtual std::int64_t num_samples() const = 0;
  // Sample at `index` >= 0 of the order. Thread safe.
  virtual TokenSample sample(std::int64_t index) const = 0;
};

// Samples are plain windows of tokens in an endless order: indices beyond one epoch continue with
// the next.
class WindowDataset : public Dataset {
 public:
  TokenSample sample(std::int64_t index) const final;
  // Fills `tokens` with seq_length + 1 tokens (inputs and, shifted by one, targets). Thread safe.
  virtual void window(std::int64_t index, std::span<std::int32_t> tokens) const = 0;
};

}  // namespace bev
