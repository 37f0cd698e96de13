// Batch files: JSON objects of named fields, for `score --batch` and `train --batches`. Which of
// them a model uses is its architecture's to say (models/model.h). Every mistake is an
// Error(kInput) naming file, field, row and column.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"

namespace bev {

// Fields with a row for each sequence.
inline constexpr FieldId kInputIds{"input_ids"};            // [B][S], rows may be unequal
inline constexpr FieldId kAttentionMask{"attention_mask"};  // 1: computed, 0: left out
inline constexpr FieldId kTokenTypeIds{"token_type_ids"};
inline constexpr FieldId kLabels{"labels"};  // kIgnoredLabel: not in the loss
inline constexpr FieldId kDecoderInputIds{"decoder_input_ids"};
// Fields with a number for each sample.
inline constexpr FieldId kNextSentenceLabel{"next_sentence_label"};
inline constexpr FieldId kClassLabels{"class_labels"};
inline constexpr FieldId kStartPositions{"start_positions"};
inline constexpr FieldId kEndPositions{"end_positions"};
// Fields that objectives read.
inline constexpr FieldId kPairs{"pairs"};
inline constexpr FieldId kPreferenceRows{"rows"};
inline constexpr FieldId kRollouts{"rollouts"};
inline constexpr FieldId kSettings{"settings"};

// What a batch may have.
struct BatchFormat {
  std::int64_t vocab_size = 0;        // ids are in [0, vocab_size)
  std::span<const FieldId> fields{};  // that the model uses, all of the known ones above
};

// One batch: {"input_ids": [[..]..], "labels": [[..]..], "attention_mask": [[..]..]}. Without
// labels they are the ids; token t predicts label t + 1. A masked token is left out, and so is its
// label; the others stay in their columns, which are their positions.
GlobalBatch read_batch(const std::string& path, const BatchFormat& format);
// {"batches": [batch, ..]}
std::vector<GlobalBatch> read_batches(const std::string& path, const BatchFormat& format);

}  // namespace bev
