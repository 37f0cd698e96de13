// Opens the masked samples selected by the flags: Megatron's BERT data of sentences.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "data/dataset.h"
#include "data/gpt/gpt_blend.h"
#include "data/masked/masked_vocabulary.h"
#include "train/config.h"

namespace bev {

// The vocabulary of --tokenizer. extra_ids: number of sentinels; 0: those of the tokenizer.
std::shared_ptr<const MaskedVocabulary> open_masked_vocabulary(const DataConfig& data,
                                                               std::int64_t extra_ids);

// Training, validation and test; null where sizes has none. Samples have no padding.
std::array<std::shared_ptr<const Dataset>, 3> open_masked_samples(const DataConfig& data,
                                                                  const SplitSizes& sizes,
                                                                  std::uint64_t seed);

}  // namespace bev
