// Byte-pair encoding (BPE): the characters or bytes of a word are merged pair by pair in order of
// merge rank.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/models/pair_table.h"
#include "tokenizer/models/word_model.h"

namespace bev {

struct BpeOptions {
  bool bytes = false;  // words and tokens are bytes, not text
  std::string continuing_prefix;
  std::string end_suffix;
  std::optional<std::string> unknown;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool whole_words = false;  // ignore_merges: a word in the vocabulary is one token
};

class BpeModel : public WordModel {
 public:
  using TextPair = std::pair<std::string, std::string>;

  // Ordered BPE merges. Throws Error(kInput) naming `source` if a merge is not in the vocabulary.
  // `keys` are the tokens as they occur in words; they differ from the vocabulary's texts for
  // byte-level BPE, whose texts are byte-to-unicode characters.
  BpeModel(Vocabulary vocabulary, Vocabulary keys, const std::vector<TextPair>& merges,
           BpeOptions options, std::string_view source);
  // Merges by the rank of the result, as in tiktoken: ids are ranks.
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
  std::array<std::int32_t, 256> byte_ids_;      // ids of bytes, or of ASCII characters; -1: none
  std::array<std::int32_t, 256> fallback_ids_;  // ids of <0x00> .. <0xFF> (byte fallback)
  bool fallback_ = false;                       // at least one of them exists
  bool plain_ = false;                          // no prefix and no suffix
  std::optional<std::int32_t> unknown_id_;
};

}  // namespace bev
