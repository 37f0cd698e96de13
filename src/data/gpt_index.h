// The order of Megatron's GPT samples. Sequences ("documents" in its names) are shuffled and laid
// one after the other; samples are cut from that row of tokens and shuffled in turn. Everything
// follows from the lengths and the specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "data/array_file.h"
#include "data/packed_array.h"

namespace bev {

struct GptIndexSpec {
  std::int64_t first_sequence = 0, end_sequence = 0;  // what the split holds
  std::optional<std::int64_t> num_samples;            // at least so many; absent: one epoch
  std::int64_t seq_length = 0;
  std::uint64_t seed = 1234;
  bool extra_token = true;    // samples read one token more, the target of their last
  bool keep_partial = false;  // a last sample that is too short is kept and padded
};

// Where a sample begins: a place in the document index, and a token there.
struct SampleStart {
  std::int64_t position = 0, offset = 0;
};

class GptIndex {
 public:
  // From the folder's cache, or made and put there; without a folder only made. Error(kInput) when
  // samples are asked of no tokens.
  GptIndex(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec,
           const std::string& cache_folder = "");

  std::int64_t num_documents() const;  // entries: every epoch has all of them
  std::int64_t num_samples() const;
  std::int64_t document(std::int64_t position) const;
  // One more than there are samples: the next one's start is the end of a sample.
  SampleStart sample_start(std::int64_t sample) const;
  std::int64_t shuffled(std::int64_t index) const;

 private:
  std::int64_t entry(std::size_t array, std::int64_t index) const;

  ArrayFile arrays_;
};

// The cache file of an index: its name has a hash of the lengths and the specification.
std::string gpt_index_file(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec);

}  // namespace bev
