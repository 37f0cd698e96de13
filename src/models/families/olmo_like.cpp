#include "models/families/olmo_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 2048, .norm_epsilon = 1e-5};

void make_olmo(ModelConfig& config) {
  config.norm_placement = NormPlacement::kPost;
  config.qk_layernorm = true;
  config.qk_norm_kind = QkNorm::kWidth;
}
}  // namespace

ModelConfig read_olmo(const HfConfig& hf, std::string_view family) {
  ModelConfig config = read_llama_like(hf, family, kDefaults);
  make_olmo(config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  reject_set(hf, "clip_qkv", "these models do not limit q, k and v");
  return config;
}

void write_olmo(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  hf.set("attention_bias", config.has_proj_bias());
}

std::vector<WeightRule> post_norm_weights() {
  std::vector<WeightRule> rules = llama_weights();
  std::erase_if(rules, [](const WeightRule& rule) {
    return rule.name.ends_with(".input_layernorm") || rule.name.ends_with(".pre_mlp_layernorm");
  });
  set_sources(rules, "post_attention_layernorm", {"post_attention_layernorm"});
  set_sources(rules, "post_mlp_layernorm", {"post_feedforward_layernorm"});
  return rules;
}

ModelConfig olmo_sized(std::string_view family, const ModelSizes& sizes) {
  ModelConfig config = llama_block(family);
  make_olmo(config);
  config.norm_epsilon = 1e-6;
  config.rotary_base = 500000.0;
  return with_sizes(config, sizes);
}

}  // namespace bev
