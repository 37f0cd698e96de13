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

  // Tokens of every sample; 0: samples have lengths of their own.
  virtual std::int64_t seq_length() const = 0;
  // Number of samples; for an endless dataset, those of one epoch (0 if there is not enough data).
  virtual std::int64_t num_samples() const = 0;
  // Sample at `index` >= 0 of the order. Thread safe.
  virtual TokenSample sample(std::int64_t index) const = 0;
  // True if samples are complete only with the one before them in their global batch, cyclically.
  virtual bool joins() const { return false; }
  // Completes a sample so. Thread safe.
  virtual void join(TokenSample&, const TokenSample&) const {}
};

// Completes the samples of a global batch.
void join_batch(const Dataset& data, std::span<TokenSample> batch);

// Samples are plain windows of tokens in an endless order: indices beyond one epoch continue with
// the next.
class WindowDataset : public Dataset {
 public:
  TokenSample sample(std::int64_t index) const final;
  // Fills `tokens` with seq_length + 1 tokens (inputs and, shifted by one, targets). Thread safe.
  virtual void window(std::int64_t index, std::span<std::int32_t> tokens) const = 0;
};

}  // namespace bev
