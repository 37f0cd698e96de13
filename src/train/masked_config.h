// Flags of masked samples: those of BERT, and what they share with T5's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/masked/masked_tokens.h"

namespace bev {

class FieldList;

struct MaskedConfig {
  double short_seq_prob = 0.1;
  bool bert_binary_head = true;
  MaskingConfig masking;

  void fields(FieldList& list);
};

}  // namespace bev
