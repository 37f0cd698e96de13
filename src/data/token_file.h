// Token files: JSON with rows of token ids, for `score`, `generate` and for replaying another
// system's batches. Every mistake is an Error(kInput) naming the file, the row and the column (both
// counted from 0).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bev {

using TokenRow = std::vector<std::int32_t>;

// A label that is left out of the loss.
inline constexpr std::int32_t kIgnoredLabel = -100;

// Rows may have unequal lengths, none is empty; labels has the shape of input_ids.
struct TokenRows {
  std::vector<TokenRow> input_ids;
  std::vector<TokenRow> labels;
};

// Each batch is a global batch of rows.
struct TokenBatches {
  std::vector<std::vector<TokenRow>> batches;
};

// {"input_ids": [[..]..], "labels": [[..]..]}: ids in [0, vocab_size), labels also kIgnoredLabel;
// without labels they are the ids. An attention_mask is accepted when it is all ones; other keys
// are not looked at.
TokenRows read_token_rows(const std::string& path, std::int64_t vocab_size);

// {"batches": [ [[ids]..] .. ]}
TokenBatches read_token_batches(const std::string& path, std::int64_t vocab_size);

}  // namespace bev
