// Unigram model: the segmentation of a word with the largest sum of log-probabilities.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/models/byte_trie.h"
#include "tokenizer/models/word_model.h"

namespace bev {

class UnigramModel : public WordModel {
 public:
  // scores[i] is the log-probability of id i.
  UnigramModel(Vocabulary vocabulary, std::vector<double> scores,
               std::optional<std::int32_t> unknown, bool byte_fallback);
  void encode(std::string_view word, ModelMemory& memory,
              std::vector<std::int32_t>& ids) const override;
  std::unique_ptr<ModelMemory> make_memory() const override;

 private:
  struct Memory;
  void add_unknown(std::string_view text, std::vector<std::int32_t>& ids) const;

  std::vector<double> scores_;
  double unknown_score_;
  std::optional<std::int32_t> unknown_;
  bool byte_fallback_;
  std::array<std::int32_t, 256> byte_ids_;  // ids of <0x00> .. <0xFF>; -1: none
  ByteTrie trie_;
};

}  // namespace bev
