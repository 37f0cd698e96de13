// GLM-4 (0414), dense: norms before and after attention and MLP, half of each head rotated in
// neighbouring pairs, gate and up in one tensor.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {
    .max_positions = 131072, .kv_heads = 2, .head_size = 128, .norm_epsilon = 1.5625e-7};
constexpr RopeKeys kRope = {.default_percent = 0.5, .partial = true};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "glm4", kDefaults);
  config.norm_placement = NormPlacement::kPreAndPost;
  read_rope(hf, kRope, config);
  config.rotary_interleaved = true;
  config.add_qkv_bias = hf.boolean("attention_bias", true);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  hf.set("attention_bias", config.has_qkv_bias());
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_weights();
  set_sources(rules, "mlp.linear_fc1", {"mlp.gate_up_proj"});
  // post_attention_layernorm is the norm before the MLP, as in Llama.
  set_sources(rules, "post_attention_layernorm", {"post_self_attn_layernorm"});
  set_sources(rules, "post_mlp_layernorm", {"post_mlp_layernorm"});
  return rules;
}

ModelConfig sized(const ModelSizes& sizes) {
  ModelConfig config = llama_block("glm4");
  config.norm_placement = NormPlacement::kPreAndPost;
  config.rotary_interleaved = true;
  config.rotary_percent = 0.5;
  config.kv_channels = 128;
  return with_sizes(config, sizes);
}
}  // namespace

ModelFamily glm4_family() {
  return {.name = "glm4",
          .architecture = "Glm4ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .default_pad = 151329,
          .presets = {{"glm4-9b", sized({40, 4096, 13696, 32, 2, 151552, 32768})},
                      {"glm4-32b", sized({61, 6144, 23040, 48, 2, 151552, 32768})}}};
}

}  // namespace bev
