// Sampling: selects the next token from one row of logits. Stateless: the random number is keyed by
// seed, sequence and position, so a sample does not depend on the rest of the batch.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/loss.h"

namespace bev {

struct SamplingOptions {
  double temperature = 0;  // 0: greedy, the largest logit, the lowest id among equals
  std::int64_t top_k = 0;  // keeps logits >= the k-th largest; 0: all; 1 is greedy
  // Nucleus sampling: drops tokens before which the cumulative probability already exceeds it; 1:
  // none. Applied after temperature and top_k; the most likely token always remains.
  double top_p = 1;
  std::uint64_t seed = 1234;

  bool greedy() const { return temperature == 0 || top_k == 1; }
};
// Throws Error(kConfig) for values out of range.
void check_sampling(const SamplingOptions& options);

// Position of the token to select.
struct TokenPlace {
  std::int64_t sequence = 0;  // index of the sequence in the whole request
  std::int64_t position = 0;  // in the sequence, including the prompt
};

struct TokenChoice {
  std::int32_t token = -1;
  double logprob = 0;  // log-softmax of the unmodified logits: temperature 1, no filter
};

// logits [V]; -infinity means impossible. Throws Error(kNumeric) if one is NaN or +infinity, or
// none is finite.
TokenChoice pick_token(std::span<const float> logits, const SamplingOptions& options,
                       const TokenPlace& place);
TokenChoice pick_token(std::span<const double> logits, const SamplingOptions& options,
                       const TokenPlace& place);
// Token from the results of the device for the row: greedy, or sampled on the device with the
// random number of this position.
TokenChoice pick_largest(const RowSummary& row, const TokenPlace& place);
TokenChoice pick_drawn(const RowSummary& row, const SampledToken& drawn, const TokenPlace& place);
// Uniform in (0, 1), 52 bits.
double random_fraction(std::uint64_t seed, const TokenPlace& place);

}  // namespace bev
