// Shared by Gemma 2 and 3: pre- and post-norms that multiply by 1 + weight, embeddings scaled by
// sqrt(hidden size), tanh GELU, a separate attention scale.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/families/llama_like.h"

namespace bev {

// Reads everything but RoPE, windows and soft caps; the writer includes windows.
ModelConfig read_gemma(const HfConfig& hf, std::string_view family, std::int64_t max_positions);
void write_gemma(const ModelConfig& config, HfConfig& hf);
std::vector<WeightRule> gemma_weights();
// Soft cap; 0 if it is null or infinite.
double read_cap(const HfConfig& hf, std::string_view key, double missing);
void write_cap(HfConfig& hf, std::string_view key, double cap);

// For presets: the attention scale is 1 / sqrt(scale_size).
ModelConfig gemma_sized(std::string_view family, const ModelSizes& sizes, std::int64_t head_size,
                        std::int64_t scale_size);

}  // namespace bev
