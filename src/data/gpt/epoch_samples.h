// The size of one pass (epoch) over the token files of a split.
#pragma once

#include <cstdint>
#include <vector>

#include "data/gpt/gpt_blend.h"

namespace bev {

struct EpochSamples {
  // Samples of one pass. A single dataset is read as one stream of tokens, in which an epoch need
  // not end with a sample; of several datasets each has its whole samples.
  double samples = 0;
  std::vector<std::int64_t> members;  // whole samples of each dataset
  bool repeats = true;                // the order goes on after one pass; not without weights

  // Whole samples of so many passes.
  std::int64_t after(double epochs) const;
};

// Throws Error(kInput) if there are no files for the split, or one cannot be read.
EpochSamples epoch_samples(const GptSources& sources, DataSplit split, std::int64_t seq_length);

}  // namespace bev
