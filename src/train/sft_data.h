// Opens the SFT dataset selected by the flags.
#pragma once

#include <cstdint>
#include <memory>

#include "data/gpt/split.h"
#include "data/sft/sft_dataset.h"
#include "train/config.h"

namespace bev {

// Training conversations are shuffled, validation conversations stay in order. Logs a report of the
// packing.
std::shared_ptr<const SftDataset> open_sft_data(const DataConfig& config, DataSplit split,
                                                std::int64_t vocab_size, std::uint64_t seed);

}  // namespace bev
