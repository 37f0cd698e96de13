// How many passes over the data a number of samples takes, by Megatron's rules.
#pragma once

#include <cstdint>

#include "data/gpt_index.h"

namespace bev {

struct GptEpochs {
  std::int64_t tokens = 0;  // of one epoch
  std::int64_t epochs = 1;
  std::int64_t num_samples = 0;  // of all epochs
  // Whether the last epoch is shuffled apart, because less than 80 % of it is used; the samples
  // that are shuffled together are then those of the others, else all.
  bool separate_last = false;
  std::int64_t shuffled_together = 0;
};

GptEpochs gpt_epochs(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec);

}  // namespace bev
