// Batch files: JSON objects of named fields, for `score --batch` and `train --batches`. The model's
// architecture says which fields it uses (models/model.h). Every mistake is an Error(kInput) naming
// file, field, row and column.
#pragma once

#include <cstdint>
#include <span>
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

// Constraints on a batch.
struct BatchFormat {
  std::int64_t vocab_size = 0;        // ids are in [0, vocab_size)
  std::span<const FieldId> fields{};  // fields that the model uses, a subset of those above
};

// One batch: {"input_ids": [[..]..], "labels": [[..]..], "attention_mask": [[..]..]}. Labels
// default to the ids; token t predicts label t + 1. Masked tokens are dropped with their labels;
// the others keep their columns as position ids.
GlobalBatch read_batch(const std::string& path, const BatchFormat& format);
// {"batches": [batch, ..]}
std::vector<GlobalBatch> read_batches(const std::string& path, const BatchFormat& format);

}  // namespace bev
