#include "data/masked/masked_sentences.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"

namespace bev {

MaskedSentences::MaskedSentences(std::shared_ptr<const IndexedDataset> sentences,
                                 SentenceIndex index,
                                 std::shared_ptr<const MaskedVocabulary> vocabulary,
                                 std::uint64_t seed)
    : sentences_(std::move(sentences)),
      index_(std::move(index)),
      vocabulary_(std::move(vocabulary)),
      seed_(seed) {}

RandomState MaskedSentences::random(std::int64_t sample) const {
  return RandomState(static_cast<std::uint32_t>(seed_ + static_cast<std::uint64_t>(sample)));
}

// The index may come from a file, so every entry is checked before use.
SentenceSample MaskedSentences::at(std::int64_t sample) const {
  BEV_CHECK(sample >= 0 && sample < num_samples(), ErrorKind::kInternal, name(), ": sample ",
            sample, " of ", num_samples());
  SentenceSample out = index_.sample(sample);
  std::int64_t all = sentences_->num_sequences();
  BEV_CHECK(out.first >= 0 && out.sentences > 0 && out.first <= all - out.sentences &&
                out.target_length > 0,
            ErrorKind::kInput, name(), ": the index gives sample ", sample, " ", out.sentences,
            " sentences from ", out.first, " on, of ", all);
  return out;
}

std::vector<std::int32_t> MaskedSentences::read(std::int64_t first, std::int64_t count) const {
  std::vector<std::int32_t> out;
  for (std::int64_t sentence = first; sentence < first + count; ++sentence) {
    std::size_t before = out.size();
    auto length =
        static_cast<std::size_t>(sentences_->lengths()[static_cast<std::size_t>(sentence)]);
    out.resize(before + length);
    std::span<std::int32_t> tokens = std::span(out).subspan(before);
    sentences_->read(sentence, 0, tokens);
    auto bad = std::ranges::find_if(tokens, [&](std::int32_t token) {
      return vocabulary_->piece(token) == PieceKind::kAbsent;
    });
    BEV_CHECK(bad == tokens.end(), ErrorKind::kInput, name(), ": token ", bad - tokens.begin(),
              " of sentence ", sentence, " is ", *bad, ", which is not in the vocabulary of ",
              vocabulary_->name, "; use the tokenizer that the files were made with");
  }
  return out;
}

}  // namespace bev
