// What Llama and its descendants have in common: the block, most of config.json, the weight names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/family.h"
#include "models/hf_parts.h"

namespace bev {

// What a family takes for missing keys.
struct LlamaDefaults {
  std::int64_t max_positions = 2048;
  std::int64_t kv_heads = 0;   // 0: as many as heads
  std::int64_t head_size = 0;  // 0: hidden size / heads
  double norm_epsilon = 1e-6;
  bool tied = false;
  std::string_view activation_key = "hidden_act";
  std::string_view activation = "silu";
};

// RMSNorm, gated SiLU, rotary positions, no biases, untied; without sizes.
ModelConfig llama_block(std::string_view family);

// Shape, norm, activation, head. Rotary positions, windows and biases are the family's.
ModelConfig read_llama_like(const HfConfig& hf, std::string_view family,
                            const LlamaDefaults& defaults);
void write_llama_like(const ModelConfig& config, const LlamaDefaults& defaults, HfConfig& hf);
std::vector<WeightRule> llama_weights();
// The same and experts under "mlp": names as transformers stores them, and as it holds them in
// memory, all experts in one tensor.
std::vector<WeightRule> llama_expert_weights();
// Endings of buffers that older files hold.
std::vector<std::string> llama_ignored();

}  // namespace bev
