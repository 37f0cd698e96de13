// Shared by Llama and its descendants: the block, most of config.json, the weight names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/families/family.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

// Defaults of missing keys of a family.
struct LlamaDefaults {
  std::int64_t max_positions = 2048;
  std::int64_t kv_heads = 0;   // 0: same as heads
  std::int64_t head_size = 0;  // 0: hidden size / heads
  double norm_epsilon = 1e-6;
  std::string_view norm_key = "rms_norm_eps";
  bool tied = false;
  std::string_view activation_key = "hidden_act";
  std::string_view activation = "silu";
  double init_std = 0.02;
};

// RMSNorm, SwiGLU, RoPE, no biases, untied; without sizes.
ModelConfig llama_block(std::string_view family);

// Shape, norm, activation, head. RoPE, windows and biases are left to the family.
ModelConfig read_llama_like(const HfConfig& hf, std::string_view family,
                            const LlamaDefaults& defaults);
void write_llama_like(const ModelConfig& config, const LlamaDefaults& defaults, HfConfig& hf);
std::vector<WeightRule> llama_weights();
// llama_weights() with experts under "mlp": names as stored by transformers, and as held in memory
// with all experts in one tensor.
std::vector<WeightRule> llama_expert_weights();
// Changes where `part` of a layer ("mlp.linear_fc1") comes from: tensors below the layer of the
// file, rows after rows of `kind`.
void set_sources(std::vector<WeightRule>& rules, std::string_view part,
                 const std::vector<std::string>& sources, WeightKind kind = WeightKind::kPlain);
// Suffixes of buffers that older files contain.
std::vector<std::string> llama_ignored();

}  // namespace bev
