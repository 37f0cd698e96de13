// From the flags of token files to the datasets they name.
#pragma once

#include <cstdint>

#include "data/gpt_blend.h"
#include "train/config.h"

namespace bev {

// Error(kConfig) naming the flag when a blend is not weights and prefixes.
GptSources gpt_sources(const DataConfig& config);
GptDataConfig gpt_data_config(const DataConfig& config, std::int64_t vocab_size,
                              std::uint64_t seed);

}  // namespace bev
