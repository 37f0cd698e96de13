// Models of a tokenizer: one word to ids (BPE, WordPiece, Unigram or WordLevel).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/models/vocabulary.h"

namespace bev {

// Scratch memory of a model; used by one thread at a time.
class ModelMemory {
 public:
  virtual ~ModelMemory() = default;
};

class WordModel {
 public:
  virtual ~WordModel() = default;

  // Appends the ids of a word: valid UTF-8, or raw bytes for a byte-level model.
  virtual void encode(std::string_view word, ModelMemory& memory,
                      std::vector<std::int32_t>& ids) const = 0;
  virtual std::unique_ptr<ModelMemory> make_memory() const = 0;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  explicit WordModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  Vocabulary vocabulary_;
};

}  // namespace bev
