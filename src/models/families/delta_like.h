// Shared by Qwen 3-Next and Qwen 3.5: layers of the gated delta rule between layers of attention
// with a gate, norms that multiply by 1 + weight, a quarter of each attention head rotated.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/families/llama_like.h"
#include "models/families/qwen_like.h"

namespace bev {

struct DeltaDefaults {
  std::int64_t kv_heads = 2;
  QwenExperts experts = {};
  std::int64_t shared_expert = 512;
};

// Attention, gated delta layers and their order; without experts.
ModelConfig read_delta_like(const HfConfig& hf, std::string_view family,
                            const DeltaDefaults& defaults);
void write_delta_like(const ModelConfig& config, const DeltaDefaults& defaults, HfConfig& hf);
// Experts with a gated shared one.
void read_shared_experts(const HfConfig& hf, const DeltaDefaults& defaults, ModelConfig& config);
void write_shared_experts(const ModelConfig& config, HfConfig& hf);

// Weights of attention with a gate, norms and MLP; `experts`: of experts too.
std::vector<WeightRule> delta_like_weights(bool experts);
// The projections of Qwen 3.5: q | k | v, z, b and a.
void add_flat_projections(std::vector<WeightRule>& rules);

// Block of the published models, every fourth layer with attention. `sizes` as in with_sizes().
ModelConfig delta_sized(std::string_view family, const ModelSizes& sizes, std::int64_t value_heads);

}  // namespace bev
