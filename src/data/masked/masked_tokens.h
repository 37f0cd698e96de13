// Megatron's token masking: words or n-grams are selected until a fraction of the tokens is masked;
// optionally others are permuted. Random draws have the same order as Megatron's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/masked/masked_vocabulary.h"
#include "data/random/mt19937.h"
#include "data/random/numpy_random.h"

namespace bev {

struct MaskingConfig {
  double probability = 0.15;   // fraction of the tokens to mask
  std::int64_t max_ngram = 3;  // maximum words of one n-gram
  bool whole_words = true;     // otherwise every token is a word
  bool permutation = false;    // permute as many other tokens, which are predicted too
  // Distribution of n-gram lengths: proportional to 1/n by default, reversed, or geometric (p =
  // 0.2).
  bool longer_ngrams = false;
  bool geometric = false;

  // Problems as text, each starting with the flag.
  std::vector<std::string> problems() const;
};

// Replacement of a masked token.
enum class MaskRule : std::uint8_t {
  kBert,  // mask token with probability 0.8, random token 0.1, unchanged 0.1
  kMask,  // always the mask token
};

// A masked n-gram, from its first to its last token.
struct MaskedSpan {
  std::size_t first = 0, last = 0;
  std::vector<std::int32_t> labels;  // original tokens
};

struct MaskedTokens {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> labels;  // original tokens to predict; kNoLabel elsewhere
  std::vector<MaskedSpan> spans;     // in order of position
};

inline constexpr std::int32_t kNoLabel = -1;

class TokenMasker {
 public:
  TokenMasker(std::shared_ptr<const MaskedVocabulary> vocabulary, const MaskingConfig& config,
              MaskRule rule);

  // All tokens must be in the vocabulary. The number masked is also limited to a fraction of
  // target_length.
  MaskedTokens mask(std::span<const std::int32_t> tokens, std::int64_t target_length,
                    RandomState& random) const;

 private:
  // Positions of maskable tokens, and the start of each word among them; starts has one entry more.
  struct Words {
    std::vector<std::size_t> places, starts;
    std::size_t count() const { return starts.size() - 1; }
    std::span<const std::size_t> run(std::size_t word, std::size_t length) const;
  };
  Words find_words(std::span<const std::int32_t> tokens) const;
  // n-gram from `word` on with at most `room` tokens; empty if none fits.
  std::span<const std::size_t> choose_run(const Words& words, std::size_t word, double room,
                                          RandomState& random) const;
  std::int32_t replacement(std::int32_t token, RandomState& random) const;
  void permute(const Words& words, std::vector<std::size_t>& order, double most,
               RandomState& random, MaskedTokens& out) const;

  std::shared_ptr<const MaskedVocabulary> vocabulary_;
  MaskingConfig config_;
  MaskRule rule_;
  RandomChoice lengths_;
};

}  // namespace bev
