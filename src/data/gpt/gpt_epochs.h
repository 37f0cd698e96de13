// Number of epochs that a number of samples takes, by Megatron's rules.
#pragma once

#include <cstdint>

#include "data/gpt/gpt_index.h"

namespace bev {

struct GptEpochs {
  std::int64_t tokens = 0;  // tokens per epoch
  std::int64_t epochs = 1;
  std::int64_t num_samples = 0;  // over all epochs
  // True if the last epoch is shuffled separately, because less than 80 % of it is used.
  // shuffled_together counts the samples of the other epochs then, else all samples.
  bool separate_last = false;
  std::int64_t shuffled_together = 0;
};

GptEpochs gpt_epochs(PackedArray<std::int32_t> lengths, const GptIndexSpec& spec);

}  // namespace bev
