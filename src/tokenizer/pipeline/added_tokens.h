// Added tokens: recognised in the raw or normalized text before pre-tokenization.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/models/byte_trie.h"

namespace bev {

struct AddedToken {
  std::string content;
  std::string shown;  // decoded text: the content, normalized if matching is
  std::int32_t id = 0;
  bool single_word = false;
  bool strip_left = false;  // strip_left, strip_right: adjacent spaces belong to the token
  bool strip_right = false;
  bool normalized = false;  // matched in normalized text
  bool special = false;
};

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  const std::vector<AddedToken>& all() const { return tokens_; }
  // nullptr if it is not an added token.
  const AddedToken* find(std::int32_t id) const;
  const AddedToken* find(std::string_view content) const;

  // Part of a text: plain text, or one added token with the spaces it strips.
  struct Part {
    std::string_view text;
    const AddedToken* token;  // nullptr: plain text
    std::size_t begin;        // offset in the text
  };
  // Splits valid UTF-8 at the added tokens that are matched in the original or in the normalized
  // text. The longest of the tokens that start at the same position wins.
  void split(std::string_view text, bool normalized, std::vector<Part>& parts) const;

 private:
  struct Searcher {
    ByteTrie trie;
    std::array<bool, 256> starts{};
    bool any = false;
  };

  std::vector<AddedToken> tokens_;
  std::vector<std::size_t> by_id_;  // indices into tokens_, sorted by id
  Searcher raw_, normalized_;
};

}  // namespace bev
