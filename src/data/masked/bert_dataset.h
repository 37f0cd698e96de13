// Megatron's BERT dataset: two segments of a document, possibly swapped, with masked words.
//
//   [CLS] A ... [SEP] B ... [SEP] padding
#pragma once

#include <cstdint>
#include <vector>

#include "data/masked/masked_sentences.h"
#include "data/masked/masked_tokens.h"

namespace bev {

struct BertConfig {
  std::int64_t seq_length = 0;
  // Samples are pairs, half of them swapped, for the next-sentence head; else one segment.
  bool classification_head = true;
  MaskingConfig masking = {};
};

// All vectors have length seq_length.
struct BertSample {
  std::vector<std::int32_t> tokens;        // 0 at padding
  std::vector<std::int32_t> types;         // token type: 0 for A and padding, 1 for B
  std::vector<std::int32_t> labels;        // original tokens to predict, -1 elsewhere
  std::vector<std::int32_t> loss_mask;     // 1 where there is a label
  std::vector<std::int32_t> padding_mask;  // 0 at padding
  bool is_random = false;                  // the segments are swapped
  bool truncated = false;                  // the sentences were longer than the sample
};

class BertDataset {
 public:
  using Config = BertConfig;
  using Sample = BertSample;

  // Sets the index parameters that these samples require.
  static void describe(const BertConfig& config, SentenceIndexSpec& spec);
  // Throws Error(kInput) if the vocabulary lacks a special token.
  BertDataset(MaskedSentences sentences, const BertConfig& config);

  std::int64_t num_samples() const { return sentences_.num_samples(); }
  const std::string& name() const { return sentences_.name(); }
  const SentenceIndex& index() const { return sentences_.index(); }
  // Thread safe.
  BertSample sample(std::int64_t index) const;

 private:
  BertSample layout(const MaskedTokens& masked, std::size_t length_a) const;

  MaskedSentences sentences_;
  BertConfig config_;
  TokenMasker masker_;
};

}  // namespace bev
