// Synthetic tokens for tests and benchmarks: a noisy Markov chain that a model can learn.
#pragma once

#include <cstdint>
#include <span>

#include "data/dataset.h"

namespace bev {

struct MockConfig {
  std::int64_t vocab_size = 0;
  std::int64_t seq_length = 0;
  std::uint64_t seed = 0;
  std::int64_t num_samples = 65536;
};

// Three of four tokens are a fixed function of the previous one, (5 t + 3) mod vocab_size; the
// others and the first are uniform. The function does not depend on the seed, so training and
// validation may use different seeds.
class MockDataset : public WindowDataset {
 public:
  explicit MockDataset(const MockConfig& config);

  std::int64_t seq_length() const override { return config_.seq_length; }
  std::int64_t num_samples() const override { return config_.num_samples; }
  void window(std::int64_t index, std::span<std::int32_t> tokens) const override;

 private:
  MockConfig config_;
};

}  // namespace bev
