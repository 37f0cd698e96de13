// The choice of the next token from one row of logits. Stateless: the random number is named by
// seed, sequence and position, so a choice does not depend on what else is in the batch.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/loss.h"

namespace bev {

struct SamplingOptions {
  double temperature = 0;  // 0: the largest logit, the lowest id among equals
  std::int64_t top_k = 0;  // keeps logits >= the k-th largest; 0: all; 1 is as temperature 0
  // Drops tokens before which the cumulative probability already exceeds it; 1: none. Comes after
  // temperature and top_k; the likeliest token always stays.
  double top_p = 1;
  std::uint64_t seed = 1234;

  bool greedy() const { return temperature == 0 || top_k == 1; }
};
// Error(kConfig) for values out of range.
void check_sampling(const SamplingOptions& options);

// Where the token will stand.
struct TokenPlace {
  std::int64_t sequence = 0;  // number of the sequence in the whole request
  std::int64_t position = 0;  // in the sequence, prompt included
};

struct TokenChoice {
  std::int32_t token = -1;
  double logprob = 0;  // log-softmax of the logits as they are: temperature 1, no filter
};

// logits [V]; -infinity means impossible. Error(kNumeric) when one is NaN or +infinity, or none is
// finite.
TokenChoice pick_token(std::span<const float> logits, const SamplingOptions& options,
                       const TokenPlace& place);
TokenChoice pick_token(std::span<const double> logits, const SamplingOptions& options,
                       const TokenPlace& place);
// From what the device found out about the row: of greedy options, and of others, where it drew a
// token with this random number.
TokenChoice pick_largest(const RowSummary& row, const TokenPlace& place);
TokenChoice pick_drawn(const RowSummary& row, const SampledToken& drawn, const TokenPlace& place);
// Uniform in (0, 1), 52 bits.
double random_fraction(std::uint64_t seed, const TokenPlace& place);

}  // namespace bev
