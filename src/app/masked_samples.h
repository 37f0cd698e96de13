// data samples --dataset bert|t5: prints the masked samples that training would read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/gpt/gpt_blend.h"
#include "train/config.h"

namespace bev {

class FieldList;
class Options;

enum class DatasetKind : std::uint8_t { kGpt, kBert, kT5 };

struct MaskedSamplesOptions {
  DatasetKind dataset = DatasetKind::kGpt;
  std::int64_t vocab_extra_ids = 0;     // 0: those of the tokenizer; T5: Megatron's default of 100
  std::int64_t decoder_seq_length = 0;  // 0: the length of the encoder

  void fields(FieldList& list);
};

// The data to read, and the number of samples of each split to print.
struct MaskedSamplesQuery {
  const DataConfig& data;
  SplitSizes sizes;
  std::uint64_t seed = 0;
  std::int64_t dump = 0;
};

// Returns the samples as JSON with megatron-core's names. Where Megatron's defaults for BERT and T5
// differ, each dataset uses its own unless the user sets a value. Throws all problems of `options`
// and of the flags for masked samples.
std::string masked_samples_json(const MaskedSamplesOptions& masked, const MaskedSamplesQuery& query,
                                Options& options);

}  // namespace bev
