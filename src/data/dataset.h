// What training reads: numbered samples of seq_length + 1 tokens, in an order that is a pure
// function of the seed. The state of a run's data is therefore one number, the index of the next
// sample.
#pragma once

#include <cstdint>
#include <span>

namespace bev {

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t seq_length() const = 0;
  // Samples of one epoch; 0 when there is not enough data for one.
  virtual std::int64_t num_samples() const = 0;
  // Fills `tokens` (seq_length + 1 of them: inputs and, one later, targets) with the sample at
  // `index` >= 0 of the endless order; indices beyond one epoch go on with the next. Safe from
  // several threads.
  virtual void sample(std::int64_t index, std::span<std::int32_t> tokens) const = 0;
};

}  // namespace bev
