// Megatron's BERT samples: two pieces of a document, perhaps swapped, with masked words.
//
//   [CLS] A ... [SEP] B ... [SEP] padding
#pragma once

#include <cstdint>
#include <vector>

#include "data/masked_sentences.h"
#include "data/masked_tokens.h"

namespace bev {

struct BertConfig {
  std::int64_t seq_length = 0;
  // Samples are pairs, half of them swapped, so that a model can learn to tell; else one piece.
  bool classification_head = true;
  MaskingConfig masking = {};
};

// All of length seq_length.
struct BertSample {
  std::vector<std::int32_t> tokens;        // 0 where there is padding
  std::vector<std::int32_t> types;         // 0: of A, 1: of B; 0 where there is padding
  std::vector<std::int32_t> labels;        // tokens to predict, -1 elsewhere
  std::vector<std::int32_t> loss_mask;     // 1 where there is a label
  std::vector<std::int32_t> padding_mask;  // 0 where there is padding
  bool is_random = false;                  // the pieces are swapped
  bool truncated = false;                  // the sentences were longer than the sample
};

class BertDataset {
 public:
  using Config = BertConfig;
  using Sample = BertSample;

  // What its samples need of an index.
  static void describe(const BertConfig& config, SentenceIndexSpec& spec);
  // Error(kInput) when the vocabulary lacks a token.
  BertDataset(MaskedSentences sentences, const BertConfig& config);

  std::int64_t num_samples() const { return sentences_.num_samples(); }
  const std::string& name() const { return sentences_.name(); }
  const SentenceIndex& index() const { return sentences_.index(); }
  // Safe from several threads.
  BertSample sample(std::int64_t index) const;

 private:
  BertSample layout(const MaskedTokens& masked, std::size_t length_a) const;

  MaskedSentences sentences_;
  BertConfig config_;
  TokenMasker masker_;
};

}  // namespace bev
