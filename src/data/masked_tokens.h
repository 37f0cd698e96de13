// Megatron's masking: words, or runs of up to n of them, are chosen until a share of the tokens is
// masked, and optionally others change places. What is drawn, and in which order, is the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/masked_vocabulary.h"
#include "data/mt19937.h"
#include "data/numpy_random.h"

namespace bev {

struct MaskingConfig {
  double probability = 0.15;   // share of the tokens that is masked
  std::int64_t max_ngram = 3;  // words of one choice, at most
  bool whole_words = true;     // else every piece is a word
  bool permutation = false;    // as many other tokens change places and are predicted too
  // How many words a choice has: 1/n by default, the other way round, or geometric (p = 0.2).
  bool longer_ngrams = false;
  bool geometric = false;

  // As text, starting with the flag.
  std::vector<std::string> problems() const;
};

// What stands in the place of a masked token.
enum class MaskRule : std::uint8_t {
  kBert,  // the mask token, 8 times of 10; any token or the token itself, once each
  kMask,  // the mask token
};

// A choice of words, from the first to the last of its tokens.
struct MaskedSpan {
  std::size_t first = 0, last = 0;
  std::vector<std::int32_t> labels;  // its tokens
};

struct MaskedTokens {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> labels;  // the tokens to predict; kNoLabel: none here
  std::vector<MaskedSpan> spans;     // by place
};

inline constexpr std::int32_t kNoLabel = -1;

class TokenMasker {
 public:
  TokenMasker(std::shared_ptr<const MaskedVocabulary> vocabulary, const MaskingConfig& config,
              MaskRule rule);

  // All tokens must be in the vocabulary. Also at most a share of target_length is masked.
  MaskedTokens mask(std::span<const std::int32_t> tokens, std::int64_t target_length,
                    RandomState& random) const;

 private:
  // The places of tokens that may be masked, and where among them each word begins; one entry more.
  struct Words {
    std::vector<std::size_t> places, starts;
    std::size_t count() const { return starts.size() - 1; }
    std::span<const std::size_t> run(std::size_t word, std::size_t length) const;
  };
  Words find_words(std::span<const std::int32_t> tokens) const;
  // A run of words from `word` on with at most `room` tokens; empty when it has none.
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
