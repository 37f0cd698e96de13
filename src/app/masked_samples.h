// data samples --dataset bert|t5: the masked samples that training would read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/gpt_blend.h"
#include "data/masked_tokens.h"
#include "train/config.h"

namespace bev {

class FieldList;
class Options;

enum class DatasetKind : std::uint8_t { kGpt, kBert, kT5 };

struct MaskedSamplesOptions {
  DatasetKind dataset = DatasetKind::kGpt;
  std::int64_t vocab_extra_ids = 0;     // 0: those of the tokenizer, or for T5 Megatron's 100
  std::int64_t decoder_seq_length = 0;  // 0: the encoder's
  double short_seq_prob = 0.1;
  bool bert_binary_head = true;
  MaskingConfig masking;

  void fields(FieldList& list);
};

// What to read, and how many samples of each split to show.
struct MaskedSamplesQuery {
  const DataConfig& data;
  SplitSizes sizes;
  std::uint64_t seed = 0;
  std::int64_t dump = 0;
};

// The samples as JSON with megatron-core's names. Where Megatron's scripts for BERT and T5 differ,
// and the user says nothing, each has its own. Throws the problems of `options`, with those of the
// flags for masked samples.
std::string masked_samples_json(MaskedSamplesOptions masked, const MaskedSamplesQuery& query,
                                Options& options);

}  // namespace bev
