// Opens the token files selected by the flags.
#pragma once

#include <cstdint>

#include "data/gpt/gpt_blend.h"
#include "train/config.h"

namespace bev {

// Throws Error(kConfig) naming the flag if a blend is not a list of weights and prefixes.
GptSources gpt_sources(const DataConfig& config);
GptDataConfig gpt_data_config(const DataConfig& config, std::int64_t vocab_size,
                              std::uint64_t seed);

}  // namespace bev
