// From the flags of conversations to the dataset they name.
#pragma once

#include <cstdint>
#include <memory>

#include "data/sft_dataset.h"
#include "data/split.h"
#include "train/config.h"

namespace bev {

// The conversations of training, shuffled, or of validation, as they come. Says in the log what
// became of them.
std::shared_ptr<const SftDataset> open_sft_data(const DataConfig& config, DataSplit split,
                                                std::int64_t vocab_size, std::uint64_t seed);

}  // namespace bev
