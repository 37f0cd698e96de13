// Tokens that are recognised in the text itself, before a model sees it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_trie.h"

namespace bev {

struct AddedToken {
  std::string content;
  std::string shown;  // what decoding gives: the content, normalized where matching is
  std::int32_t id = 0;
  bool single_word = false;
  bool strip_left = false;  // spaces around it belong to it
  bool strip_right = false;
  bool normalized = false;  // is searched in normalized text
  bool special = false;
};

class AddedTokens {
 public:
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  const std::vector<AddedToken>& all() const { return tokens_; }
  // nullptr when the id is not an added token's.
  const AddedToken* find(std::int32_t id) const;
  const AddedToken* find(std::string_view content) const;

  // A part of a text: plain, or one token with the spaces it takes.
  struct Part {
    std::string_view text;
    const AddedToken* token;  // nullptr: plain text
    std::size_t begin;        // in the text
  };
  // The parts of a valid text, by the tokens that are searched in the original or the normalized
  // text. Of tokens that start at the same place the longest is taken.
  void split(std::string_view text, bool normalized, std::vector<Part>& parts) const;

 private:
  struct Searcher {
    ByteTrie trie;
    std::array<bool, 256> starts{};
    bool any = false;
  };

  std::vector<AddedToken> tokens_;
  std::vector<std::size_t> by_id_;  // places in tokens_, by their ids
  Searcher raw_, normalized_;
};

}  // namespace bev
