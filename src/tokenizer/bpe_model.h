// Byte-pair encoding: the characters or bytes of a word, merged pair by pair in the order of the
// merges.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/pair_table.h"
#include "tokenizer/word_model.h"

namespace bev {

struct BpeOptions {
  bool bytes = false;  // words and tokens are bytes, not text
  std::string continuing_prefix;
  std::string end_suffix;
  std::optional<std::string> unknown;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool whole_words = false;  // a word that is a token is that token, whatever the merges
};

class BpeModel : public WordModel {
 public:
  using TextPair = std::pair<std::string, std::string>;

  // Merges in their order. Error(kInput), naming `source`, when one is not of the vocabulary.
  // `keys` are the tokens as words have them; they differ from the vocabulary's texts where those
  // are stand-ins of bytes.
  BpeModel(Vocabulary vocabulary, Vocabulary keys, const std::vector<TextPair>& merges,
           BpeOptions options, std::string_view source);
  // Merges by the rank of the result, as tiktoken: ids are ranks.
  BpeModel(Vocabulary vocabulary, Vocabulary keys, BpeOptions options);

  void encode(std::string_view word, ModelMemory& memory,
              std::vector<std::int32_t>& ids) const override;
  std::unique_ptr<ModelMemory> make_memory() const override;

 private:
  struct Memory;

  void find_units();
  void split(std::string_view word, Memory& memory) const;
  void add_unknown(std::string_view unit, Memory& memory) const;
  void merge_short(Memory& memory) const;
  void merge_long(Memory& memory) const;

  Vocabulary keys_;
  BpeOptions options_;
  PairTable merges_;
  std::array<std::int32_t, 256> byte_ids_;      // of the bytes, or of ASCII characters; -1: none
  std::array<std::int32_t, 256> fallback_ids_;  // of <0x00> .. <0xFF>
  bool fallback_ = false;                       // some of them are there
  bool plain_ = false;                          // no prefix and no suffix
  std::optional<std::int32_t> unknown_id_;
};

}  // namespace bev
