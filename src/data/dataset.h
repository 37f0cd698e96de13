// What training reads: numbered samples of seq_length tokens, in an order that is a pure function
// of the seed. The state of a run's data is therefore one number, the index of the next sample.
#pragma once

#include <cstdint>
#include <span>

#include "data/batch.h"

namespace bev {

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t seq_length() const = 0;
  // Samples there are; of an endless order those of one epoch (0 when there is not enough data).
  virtual std::int64_t num_samples() const = 0;
  // The sample at `index` >= 0 of the order. Safe from several threads.
  virtual TokenSample sample(std::int64_t index) const = 0;
};

// Samples that are plain windows of tokens, in an endless order: indices beyond one epoch go on
// with the next.
class WindowDataset : public Dataset {
 public:
  TokenSample sample(std::int64_t index) const final;
  // Fills `tokens` (seq_length + 1 of them: inputs and, one later, targets). Safe from several
  // threads.
  virtual void window(std::int64_t index, std::span<std::int32_t> tokens) const = 0;
};

}  // namespace bev
