// Sentences and random stream of each BERT or T5 sample.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/indexed/indexed_dataset.h"
#include "data/masked/masked_vocabulary.h"
#include "data/masked/sentence_index.h"
#include "data/random/mt19937.h"

namespace bev {

class MaskedSentences {
 public:
  MaskedSentences(std::shared_ptr<const IndexedDataset> sentences, SentenceIndex index,
                  std::shared_ptr<const MaskedVocabulary> vocabulary, std::uint64_t seed);

  std::int64_t num_samples() const { return index_.num_samples(); }
  const std::string& name() const { return sentences_->name(); }
  const SentenceIndex& index() const { return index_; }
  const std::shared_ptr<const MaskedVocabulary>& vocabulary() const { return vocabulary_; }

  // Every sample has its own random stream, independent of the reading order.
  RandomState random(std::int64_t sample) const;
  // The returned sentences are checked to exist.
  SentenceSample at(std::int64_t sample) const;
  // Concatenates sentences [first, first + count). Throws Error(kInput) naming the sentence if a
  // token is not in the vocabulary.
  std::vector<std::int32_t> read(std::int64_t first, std::int64_t count) const;

 private:
  std::shared_ptr<const IndexedDataset> sentences_;
  SentenceIndex index_;
  std::shared_ptr<const MaskedVocabulary> vocabulary_;
  std::uint64_t seed_;
};

}  // namespace bev
