// A tokenizer whose special tokens are given.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/tokenizer.h"

namespace bev {

// Single bytes, and special tokens from 256 on.
class MarkTokenizer : public Tokenizer {
 public:
  explicit MarkTokenizer(std::vector<std::string> marks) : marks_(std::move(marks)) {}
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    while (!text.empty()) {
      std::size_t length = 1;
      auto id = static_cast<std::int32_t>(static_cast<unsigned char>(text[0]));
      for (std::size_t i = 0; i < marks_.size(); ++i) {
        if (!text.starts_with(marks_[i])) continue;
        length = marks_[i].size();
        id = static_cast<std::int32_t>(256 + i);
      }
      ids.push_back(id);
      text.remove_prefix(length);
    }
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (std::int32_t id : ids) {
      text += is_special(id) ? marks_[static_cast<std::size_t>(id - 256)]
                             : std::string(1, static_cast<char>(id));
    }
    return text;
  }
  std::int64_t vocab_size() const override {
    return 256 + static_cast<std::int64_t>(marks_.size());
  }
  std::optional<std::int32_t> token_id(std::string_view) const override { return std::nullopt; }
  std::optional<std::string> token_text(std::int32_t id) const override {
    if (!is_special(id)) return to_byte_level(decode(std::vector{id}));
    return marks_[static_cast<std::size_t>(id - 256)];
  }
  bool is_special(std::int32_t id) const override { return id >= 256; }

 private:
  std::vector<std::string> marks_;
};

}  // namespace bev
