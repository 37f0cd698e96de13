// Megatron's T5 dataset: spans of words are cut out of a text. The encoder reads the rest, with a
// sentinel for each span; the decoder writes the sentinels and their spans.
//
//   encoder input    a b <0> e <1> g
//   decoder input    <bos> <0> c d <1> f
//   decoder output   <0> c d <1> f <eos>
#pragma once

#include <cstdint>
#include <vector>

#include "data/masked/masked_sentences.h"
#include "data/masked/masked_tokens.h"

namespace bev {

struct T5Config {
  std::int64_t seq_length = 0;  // encoder length
  std::int64_t decoder_seq_length = 0;
  MaskingConfig masking = {};
};

// Tokens are 0 at padding.
struct T5Sample {
  std::vector<std::int32_t> encoder_tokens, encoder_mask;  // encoder length
  // Decoder length.
  std::vector<std::int32_t> decoder_tokens, decoder_mask;
  std::vector<std::int32_t> labels, loss_mask;          // label -1: padding
  std::int64_t encoder_length = 0, decoder_length = 0;  // without padding
  bool truncated = false;
};

class T5Dataset {
 public:
  using Config = T5Config;
  using Sample = T5Sample;

  // Sets the index parameters that these samples require.
  static void describe(const T5Config& config, SentenceIndexSpec& spec);
  // Throws Error(kInput) if the vocabulary lacks a special token.
  T5Dataset(MaskedSentences sentences, const T5Config& config);

  std::int64_t num_samples() const { return sentences_.num_samples(); }
  const std::string& name() const { return sentences_.name(); }
  const SentenceIndex& index() const { return sentences_.index(); }
  // Throws Error(kInput) if there are more spans than sentinels, or the decoder is too short.
  // Thread safe.
  T5Sample sample(std::int64_t index) const;

 private:
  T5Sample cut_out(const MaskedTokens& masked, std::int64_t index) const;
  void pad(T5Sample& sample) const;

  MaskedSentences sentences_;
  T5Config config_;
  TokenMasker masker_;
};

}  // namespace bev
