// What encoders have besides the layers that they share with decoders: token types, a norm of the
// embeddings, and the heads on top.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/activation_kind.h"

namespace bev {

class FieldList;

// What a head for labels reads, and what its outputs are.
enum class LabelKind : std::uint8_t {
  kNone,
  kSequence,  // one row of labels for each sequence
  kTokens,    // one for each token
  kSpans,     // first and last token of a span: two outputs for each token
};
// What of a sequence its labels are computed from.
enum class LabelPooling : std::uint8_t { kFirst, kMean };

struct EncoderConfig {
  bool encoder = false;          // labels are those of the tokens themselves, not of the next ones
  std::int64_t token_types = 0;  // rows of a table that is added to the embeddings; 0: none
  std::int64_t position_offset = 0;  // first row of the position table that is used (RoBERTa: 2)
  bool embedding_norm = false;
  bool first_norm = true;  // false: the first layer has no norm before attention (ModernBERT)
  // Output layer for masked tokens; with `transform` behind a dense layer, activation and norm.
  bool language_head = true;
  bool transform = false;
  bool transform_bias = true;
  Activation transform_activation = Activation::kGelu;
  bool pooler = false;         // tanh of a dense layer on the first token
  bool next_sentence = false;  // head of two outputs on the pooler
  // Head of ModelConfig::num_labels outputs: on the pooler, else behind the transform if there is
  // one, else on the hidden states.
  LabelKind labels = LabelKind::kNone;
  LabelPooling label_pooling = LabelPooling::kFirst;

  // A model without heads but perhaps the pooler; its files have no prefix of names.
  bool bare() const {
    return encoder && !language_head && !next_sentence && labels == LabelKind::kNone;
  }
  void fields(FieldList& list);
  std::vector<std::string> problems() const;
  bool operator==(const EncoderConfig&) const = default;
};

}  // namespace bev
