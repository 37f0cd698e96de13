// Sample index of Megatron's GPT dataset. Sequences ("documents" in Megatron's names) are shuffled
// and concatenated; samples are cut from this token stream and shuffled in turn. Everything is a
// function of the lengths and the specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "data/indexed/array_file.h"
#include "data/indexed/packed_array.h"

namespace bev {

struct GptIndexSpec {
  std::int64_t first_sequence = 0, end_sequence = 0;  // sequences of the split
  std::optional<std::int64_t> num_samples;            // minimum number; nullopt: one epoch
  std::int64_t seq_length = 0;
  std::uint64_t seed = 1234;
  bool extra_token = true;    // samples read one more token, the target of the last
  bool keep_partial = false;  // a short last sample is kept and padded
};

// Start of a sample: position in the document index, and token offset there.
struct SampleStart {
  std::int64_t position = 0, offset = 0;
};

class GptIndex {
 public:
  // Loads the index from the cache folder, or builds and saves it; without a folder it is only
  // built. Throws Error(kInput) if samples are requested but there are no tokens.
  GptIndex(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec,
           const std::string& cache_folder = "");

  std::int64_t num_documents() const;  // entries of the document index, over all epochs
  std::int64_t num_samples() const;
  std::int64_t document(std::int64_t position) const;
  // Valid for sample <= num_samples(): a sample ends where the next one starts.
  SampleStart sample_start(std::int64_t sample) const;
  std::int64_t shuffled(std::int64_t index) const;

 private:
  std::int64_t entry(std::size_t array, std::int64_t index) const;

  ArrayFile arrays_;
};

// Name of the cache file; contains a hash of the lengths and the specification.
std::string gpt_index_file(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec);

}  // namespace bev
