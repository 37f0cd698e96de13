// Sample index of Megatron's BERT and T5 data: runs of sentences of one document, each with a
// target length, in shuffled order. Everything is a function of the sentence and document lengths
// and the specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "data/indexed/array_file.h"
#include "data/indexed/packed_array.h"

namespace bev {

// Documents with more than one sentence are skipped if one is longer than this.
inline constexpr std::int32_t kLongestSentence = 512;

struct SentenceIndexSpec {
  std::int64_t first_document = 0, end_document = 0;  // documents of the split
  // Whole epochs until there are at least this many; nullopt: one epoch.
  std::optional<std::int64_t> num_samples;
  std::int64_t target_length = 0;    // tokens of a sample's sentences; must be > 1
  std::int64_t least_sentences = 1;  // minimum sentences per sample
  double short_sequence_probability = 0.1;
  std::uint64_t seed = 1234;
};

// Sentences (the sequences of an indexed dataset) and the first sentence of each document, with the
// end.
struct SentenceLayout {
  PackedArray<std::int32_t> lengths;
  PackedArray<std::int64_t> documents;
};

struct SentenceSample {
  std::int64_t first = 0;
  std::int32_t sentences = 0;
  std::int32_t target_length = 0;
};

class SentenceIndex {
 public:
  // Loads the index from the cache folder, or builds and saves it; without a folder it is only
  // built. Has no samples if no document of the split is usable.
  SentenceIndex(const SentenceLayout& layout, const SentenceIndexSpec& spec,
                const std::string& cache_folder = "");

  std::int64_t num_samples() const;
  SentenceSample sample(std::int64_t index) const;

 private:
  ArrayFile arrays_;
};

// Name of the cache file; contains a hash of the layout and the specification.
std::string sentence_index_file(const SentenceLayout& layout, const SentenceIndexSpec& spec);

}  // namespace bev
