// Opens the preferences selected by the flags.
#pragma once

#include <cstdint>
#include <memory>

#include "data/gpt/split.h"
#include "data/preference/preference_dataset.h"
#include "train/config.h"

namespace bev {

// Rows for training are shuffled, those for validation stay in order. Logs a report of them.
std::shared_ptr<const PreferenceDataset> open_preference_data(const DataConfig& config,
                                                              DataSplit split,
                                                              std::int64_t vocab_size,
                                                              std::uint64_t seed);

}  // namespace bev
