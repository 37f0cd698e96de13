// SentencePiece tokenizer (unigram and BPE), equivalent to Google's library.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/formats/sentencepiece_file.h"
#include "tokenizer/models/byte_trie.h"
#include "tokenizer/models/vocabulary.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct SentencePieceSpecials {  // special tokens that add_special_tokens adds
  bool begin = true;
  bool end = false;
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  // Throws Error(kInput) naming `source` if the pieces do not form a valid model.
  SentencePieceTokenizer(SentencePieceFile file, SentencePieceSpecials specials,
                         const std::string& source);

  std::vector<std::int32_t> encode(std::string_view text) const override;
  void add_special_tokens(std::vector<std::int32_t>& ids) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::int64_t vocab_size() const override {
    return static_cast<std::int64_t>(file_.pieces.size());
  }
  std::optional<std::int32_t> token_id(std::string_view token) const override;
  std::optional<std::string> token_text(std::int32_t id) const override;
  bool is_special(std::int32_t id) const override;
  std::optional<std::int32_t> eod() const override { return end_; }

 private:
  struct Piece {
    std::string_view text;
    std::int32_t id;
  };
  struct Merging;  // state of the BPE merges of one text

  // Normalized form of a prefix of the text, and the length of the prefix.
  std::pair<std::string_view, std::size_t> normalize_prefix(std::string_view text,
                                                            const SentencePieceRules& rules,
                                                            bool match_symbols) const;
  std::string normalize(std::string_view text, const SentencePieceRules& rules,
                        bool match_symbols) const;
  // Length of the longest user-defined symbol at the start of the text, or 0.
  std::size_t symbol_bytes(std::string_view text) const;
  std::vector<Piece> cut_unigram(std::string_view text) const;
  std::vector<Piece> cut_bpe(std::string_view text) const;
  const SentencePiece& piece(std::int32_t id) const {
    return file_.pieces[static_cast<std::size_t>(id)];
  }
  std::optional<std::int32_t> control_id(std::string_view text) const;

  SentencePieceFile file_;
  SentencePieceSpecials specials_;
  Vocabulary pieces_;    // normal, user-defined and unused pieces
  Vocabulary reserved_;  // all other pieces
  ByteTrie trie_;        // trie of pieces_, for unigram
  ByteTrie symbols_;     // user-defined symbols
  bool has_symbols_ = false;
  std::array<std::int32_t, 256> byte_ids_{};
  std::int32_t unknown_ = -1;
  float unknown_score_ = 0;
  std::optional<std::int32_t> begin_, end_;
};

}  // namespace bev
