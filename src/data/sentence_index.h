// Which sentences make up the samples of Megatron's BERT and T5 data: runs of sentences of one
// document, each with the number of tokens it is cut to, in shuffled order. Everything follows from
// the lengths of sentences and documents and the specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "data/array_file.h"
#include "data/packed_array.h"

namespace bev {

// Documents with more than one sentence are left out when one of them is longer than this.
inline constexpr std::int32_t kLongestSentence = 512;

struct SentenceIndexSpec {
  std::int64_t first_document = 0, end_document = 0;  // what the split holds
  // Whole epochs until there are at least so many; absent: one epoch.
  std::optional<std::int64_t> num_samples;
  std::int64_t target_length = 0;    // tokens of a sample's sentences, more than 1
  std::int64_t least_sentences = 1;  // of a sample
  double short_sequence_probability = 0.1;
  std::uint64_t seed = 1234;
};

// The sequences of a pair of token files, which are sentences, and the first sentence of each
// document and the end.
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
  // From the folder's cache, or made and put there; without a folder only made. Without any samples
  // when no document of the split can be used.
  SentenceIndex(const SentenceLayout& layout, const SentenceIndexSpec& spec,
                const std::string& cache_folder = "");

  std::int64_t num_samples() const;
  SentenceSample sample(std::int64_t index) const;

 private:
  ArrayFile arrays_;
};

// The cache file of an index: its name has a hash of the layout and the specification.
std::string sentence_index_file(const SentenceLayout& layout, const SentenceIndexSpec& spec);

}  // namespace bev
