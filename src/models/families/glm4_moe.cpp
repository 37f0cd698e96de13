// GLM-4.5 to 4.7: the experts of DeepSeek-V3 on grouped-query attention, half of each head rotated.
#include "models/families/deepseek_like.h"
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 131072, .kv_heads = 8, .norm_epsilon = 1e-5};
constexpr RopeKeys kRope = {.default_percent = 0.5, .partial = true};
constexpr DeepseekExperts kExperts = {
    .dense_layers = 1, .experts = 128, .topk = 8, .ffn = 1408, .shared = 1};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "glm4_moe", kDefaults);
  read_rope(hf, kRope, config);
  config.qk_layernorm = hf.boolean("use_qk_norm", false);
  config.add_qkv_bias = hf.boolean("attention_bias", false);  // the output has none
  read_deepseek_experts(hf, kExperts, config);
  if (config.moe.any()) read_sigmoid_router(hf, 1, 1, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  hf.set("use_qk_norm", config.qk_layernorm);
  hf.set("attention_bias", config.has_qkv_bias());
  write_deepseek_experts(config, hf);
  hf.set("norm_topk_prob", config.moe.norm_topk_prob);
  hf.set("num_nextn_predict_layers", config.mtp_num_layers);
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_expert_weights();
  add_deepseek_experts(rules);
  add_mtp_weights(rules);
  return rules;
}

struct Sizes {
  ModelSizes model;
  std::int64_t experts, ffn, dense;
  double scaling;
};

ModelConfig sized(const Sizes& sizes, bool large) {
  ModelConfig config = llama_block("glm4_moe");
  config.kv_channels = 128;
  config.rotary_base = 1e6;
  config.rotary_percent = 0.5;
  config.qk_layernorm = large;
  config.add_qkv_bias = true;
  set_sigmoid_router(config.moe);
  config.moe.num_experts = sizes.experts;
  config.moe.topk = 8;
  config.moe.ffn_hidden_size = config.moe.shared_expert_size = sizes.ffn;
  config.moe.scaling_factor = sizes.scaling;
  config.moe.layer_freq = expert_layers(sizes.dense, sizes.model.layers);
  return with_sizes(config, sizes.model);
}

std::vector<Preset> presets() {
  constexpr std::int64_t kVocab = 151552, kLong = 131072;
  return {
      {"glm4.5-air", sized({{46, 4096, 10944, 96, 8, kVocab, kLong}, 128, 1408, 1, 1.0}, false)},
      {"glm4.5", sized({{92, 5120, 12288, 96, 8, kVocab, kLong}, 160, 1536, 3, 2.5}, true)}};
}
}  // namespace

ModelFamily glm4_moe_family() {
  return {.name = "glm4_moe",
          .architecture = "Glm4MoeForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = mtp_ignored(),
          .further_layers = "model.layers.{}.",
          .presets = presets()};
}

}  // namespace bev
