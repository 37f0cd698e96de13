// Shared by the families with Mamba-2 layers: their keys of config.json and weight names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/families/family.h"

namespace bev {

// Keys of a family. "": it has none.
struct MambaKeys {
  std::string_view heads = "mamba_n_heads", head_dim = "mamba_d_head", groups = "mamba_n_groups";
  std::string_view state = "mamba_d_state", conv = "mamba_d_conv", expand = "mamba_expand";
  std::string_view conv_bias = "mamba_conv_bias";
  std::string_view in_bias = "mamba_proj_bias", out_bias = "mamba_proj_bias";
  std::string_view chunk = "mamba_chunk_size";
};
// Defaults of missing keys; head_dim 0: width / heads.
struct MambaDefaults {
  std::int64_t heads = 128, head_dim = 0, groups = 1, state = 256, chunk = 256;
};

// Sizes and biases. `width`: of all heads.
void read_mamba(const HfConfig& hf, const MambaKeys& keys, const MambaDefaults& defaults,
                std::int64_t width, ModelConfig& config);
void write_mamba(const ModelConfig& config, const MambaKeys& keys, const MambaDefaults& defaults,
                 HfConfig& hf);
// "time_step_limit".
void read_step_limits(const HfConfig& hf, ModelConfig& config);
void write_step_limits(const ModelConfig& config, HfConfig& hf);

// Weights of the mixer `ours` (below the layer) under the file's name `theirs` (below the layer's).
void add_mamba_weights(std::vector<WeightRule>& rules, const std::string& ours,
                       const std::string& theirs);
// llama_weights() with a mixer "mixer" under "mamba", and these names of norms and MLP.
struct HybridNames {
  std::string_view mlp_norm = "pre_ff_layernorm", final_norm = "final_layernorm";
  std::string_view mlp = "feed_forward";
};
std::vector<WeightRule> hybrid_weights(const HybridNames& names);

}  // namespace bev
