// Sampling: how the next token of a sequence is selected. Stateless: the random number is keyed by
// seed, sequence and position, so a sample does not depend on the rest of the batch. The rule
// itself is in kernels/sampling.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/logit_edit.h"

namespace bev {

struct SamplingRule;

struct SamplingOptions {
  double temperature = 0;  // 0: greedy
  std::int64_t top_k = 0;  // 0: all; 1 is greedy
  double top_p = 1;        // nucleus sampling; 1: all
  std::uint64_t seed = 1234;
  double min_p = 0;  // relative to the likeliest token; 0: all
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::vector<LogitEdit> logit_bias = {};
  std::vector<std::int32_t> allowed_tokens = {};  // only these can be selected; empty: all

  bool penalises() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};
// What a token must or must not be by its place and by the tokens before it, in sampling and in
// beam search.
struct SequenceRules {
  std::int64_t no_repeat_ngram_size = 0;  // no n-gram of this size occurs twice; 0: any may
  std::int32_t forced_bos_token = -1;     // follows a prompt of one token; -1: none
  std::int32_t forced_eos_token = -1;     // is the last one before max_new_tokens; -1: none
  // Sequences of tokens that may not be completed, even where they begin in the prompt.
  std::vector<std::vector<std::int32_t>> banned = {};

  // A rule depends on the tokens that were selected before.
  bool follow_tokens() const;
};
// Both throw Error(kConfig) for values out of range.
void check_rules(const SequenceRules& rules, std::int64_t vocabulary);
void check_sampling(const SamplingOptions& options, std::int64_t vocabulary);
// The biases of tokens that may be selected.
std::vector<LogitEdit> allowed_biases(const SamplingOptions& options);
// Tokens that would complete a banned sequence after `tokens`.
std::vector<std::int32_t> banned_after(std::span<const std::int32_t> tokens,
                                       const SequenceRules& rules);

// Position of the token to select.
struct TokenPlace {
  std::int64_t sequence = 0;  // names the sequence in the whole request
  std::int64_t position = 0;  // in the sequence, including the prompt
};
// Uniform in (0, 1), 52 bits.
double random_fraction(std::uint64_t seed, const TokenPlace& place);

// The rule for the token at `place`, without counts and edits.
SamplingRule sampling_rule(const SamplingOptions& options, const TokenPlace& place);

}  // namespace bev
