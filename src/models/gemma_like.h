// What Gemma 2 and 3 share: norms around attention and MLP that multiply by 1 + weight, embeddings
// scaled by sqrt(hidden size), tanh GELU, an attention scale of their own.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/llama_like.h"

namespace bev {

// Everything but rotary positions, windows and soft caps; the writer includes windows.
ModelConfig read_gemma(const HfConfig& hf, std::string_view family, std::int64_t max_positions);
void write_gemma(const ModelConfig& config, HfConfig& hf);
std::vector<WeightRule> gemma_weights();
// A soft cap: 0 when it is null.
double read_cap(const HfConfig& hf, std::string_view key, double missing);
void write_cap(HfConfig& hf, std::string_view key, double cap);

// For presets: `head_size` is also that of the attention scale unless `scale_size` says otherwise.
ModelConfig gemma_sized(std::string_view family, const ModelSizes& sizes, std::int64_t head_size,
                        std::int64_t scale_size);

}  // namespace bev
