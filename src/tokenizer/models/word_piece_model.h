// WordPiece (greedy longest match first) and WordLevel (whole words).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/models/byte_trie.h"
#include "tokenizer/models/word_model.h"

namespace bev {

struct WordPieceOptions {
  std::string unknown = "[UNK]";
  std::string continuing_prefix = "##";
  std::size_t most_characters = 100;  // a longer word is unknown
};

class WordPieceModel : public WordModel {
 public:
  WordPieceModel(Vocabulary vocabulary, WordPieceOptions options);
  void encode(std::string_view word, ModelMemory& memory,
              std::vector<std::int32_t>& ids) const override;
  std::unique_ptr<ModelMemory> make_memory() const override;

 private:
  WordPieceOptions options_;
  ByteTrie trie_;
  std::int32_t continuing_node_;  // node after the prefix; kNone if no token starts with it
};

class WordLevelModel : public WordModel {
 public:
  WordLevelModel(Vocabulary vocabulary, std::string unknown);
  void encode(std::string_view word, ModelMemory& memory,
              std::vector<std::int32_t>& ids) const override;
  std::unique_ptr<ModelMemory> make_memory() const override;

 private:
  std::string unknown_;
};

}  // namespace bev
