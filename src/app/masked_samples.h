// data samples --dataset bert|t5: the masked samples that training would read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/gpt_blend.h"
#include "data/masked_tokens.h"

namespace bev {

class FieldList;
class Options;
struct CommandConfig;

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

// Where Megatron's scripts for BERT and T5 differ, and the user says nothing, each has its own.
// Samples are opened and printed as JSON with megatron-core's names.
int run_masked_samples(CommandConfig& config, const SplitSizes& sizes, Options& options);

}  // namespace bev
