// Token files: JSON with rows of token ids, for `score`, `generate` and for replaying another
// system's batches. Every mistake is an Error(kInput) naming the file, the row and the column (both
// counted from 0). Batches with more fields are in batch_file.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/sft/json_rows.h"

namespace bev {

// Non-empty rows of possibly different lengths; labels has the shape of input_ids.
struct TokenRows {
  std::vector<TokenRow> input_ids;
  std::vector<TokenRow> labels;
};

// {"input_ids": [[..]..], "labels": [[..]..]}: ids in [0, vocab_size), labels also kIgnoredLabel;
// labels default to the ids. An attention_mask must be all ones; other keys are ignored.
TokenRows read_token_rows(const std::string& path, std::int64_t vocab_size);
// Reads the rows of an object in a file.
TokenRows read_ids_and_labels(const JsonPlace& object, std::int64_t vocab_size);
// One sample per row.
GlobalBatch batch_of(const TokenRows& rows);

// {"batches": [ [[ids]..] .. ]}: the labels are the ids.
std::vector<GlobalBatch> read_token_batches(const std::string& path, std::int64_t vocab_size);

}  // namespace bev
