// Null tokenizer: the text is decimal ids separated by spaces, for data tokenized elsewhere.
#pragma once

#include "tokenizer/tokenizer.h"

namespace bev {

class NullTokenizer : public Tokenizer {
 public:
  // Vocabulary of `size` ids plus the end-of-document token.
  explicit NullTokenizer(std::int64_t size) : size_(size) {}

  // Throws Error(kInput) if a word is not an id.
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override { return size_ + 1; }
  std::optional<std::int32_t> token_id(std::string_view token) const override;
  std::optional<std::string> token_text(std::int32_t id) const override;
  std::optional<std::int32_t> eod() const override { return static_cast<std::int32_t>(size_); }

 private:
  std::int64_t size_;
};

}  // namespace bev
