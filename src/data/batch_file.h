// Batch files: JSON objects of named fields, for `score --batch` and `train --batches`. The model's
// architecture says which fields it uses (models/model.h). Every mistake is an Error(kInput) naming
// file, field, row and column.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/batch.h"

namespace bev {

// Fields with one row per sequence.
inline constexpr FieldId kInputIds{"input_ids"};            // [B][S]; row lengths may differ
inline constexpr FieldId kAttentionMask{"attention_mask"};  // 1: used, 0: dropped
inline constexpr FieldId kTokenTypeIds{"token_type_ids"};
inline constexpr FieldId kLabels{"labels"};  // kIgnoredLabel: excluded from the loss
inline constexpr FieldId kDecoderInputIds{"decoder_input_ids"};
// Fields with one number per sample.
inline constexpr FieldId kNextSentenceLabel{"next_sentence_label"};
inline constexpr FieldId kClassLabels{"class_labels"};
inline constexpr FieldId kStartPositions{"start_positions"};
inline constexpr FieldId kEndPositions{"end_positions"};
// Fields read by objectives.
inline constexpr FieldId kPairs{"pairs"};
inline constexpr FieldId kPreferenceRows{"rows"};
inline constexpr FieldId kRollouts{"rollouts"};
inline constexpr FieldId kSettings{"settings"};

// What batches of encoders are read with.
struct EncoderFormat {
  bool on = false;               // else the model is a decoder: token t predicts label t + 1
  std::int64_t token_types = 0;  // token types are in [0, token_types)
  // Labels of tokens or sequences are in [0, labels) instead of token ids; 0: token ids. A sequence
  // with one label has a number.
  std::int64_t labels = 0;
  // This token has no position of its own, and is not counted (RoBERTa's padding); -1: none.
  std::int64_t uncounted_token = -1;
};

// Constraints on a batch.
struct BatchFormat {
  std::int64_t vocab_size = 0;       // ids are in [0, vocab_size)
  std::vector<FieldId> fields = {};  // fields that the model uses, a subset of those above
  EncoderFormat encoder = {};
};

// One batch: {"input_ids": [[..]..], "labels": [[..]..], "attention_mask": [[..]..]}. Labels
// default to the ids, and token t predicts label t + 1; those of an encoder default to none, and
// are of their own token. Masked tokens are dropped with their labels; the others keep their
// columns as position ids.
GlobalBatch read_batch(const std::string& path, const BatchFormat& format);
// {"batches": [batch, ..]}
std::vector<GlobalBatch> read_batches(const std::string& path, const BatchFormat& format);

}  // namespace bev
