// Shared by OLMo 2 and 3: norms after attention and MLP only, norms of q and k over their whole
// width.
#pragma once

#include <string_view>
#include <vector>

#include "models/families/llama_like.h"

namespace bev {

ModelConfig read_olmo(const HfConfig& hf, std::string_view family);
void write_olmo(const ModelConfig& config, HfConfig& hf);
std::vector<WeightRule> post_norm_weights();
ModelConfig olmo_sized(std::string_view family, const ModelSizes& sizes);

}  // namespace bev
