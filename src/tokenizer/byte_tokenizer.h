// Byte tokenizer: id = byte value, 256 ids, every text or binary round-trips exactly. In Hugging
// Face's terms, byte-level BPE without merges.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace bev {

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr std::int64_t kVocabSize = 256;

  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override { return kVocabSize; }
  std::optional<std::int32_t> token_id(std::string_view token) const override;
  std::optional<std::string> token_text(std::int32_t id) const override;
  bool takes_any_bytes() const override { return true; }
};

// Contents of tokenizer.json and tokenizer_config.json for the equivalent Hugging Face tokenizer.
std::string byte_tokenizer_json();
std::string byte_tokenizer_config_json();

// True if a tokenizer.json (its text; `source` for messages) encodes every text to its bytes,
// judged by content. Throws Error(kInput) if it is not valid JSON.
bool is_byte_tokenizer(std::string_view json, const std::string& source);

}  // namespace bev
