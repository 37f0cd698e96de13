// DeepSeek-V2 and V3: MLA, and MoE in all layers but the first ones.
#include "models/families/deepseek_like.h"
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {

// Differences between V2 and V3 other than names.
struct Generation {
  const char* name;
  std::int64_t positions;  // defaults of missing keys
  DeepseekExperts experts;
};
constexpr Generation kV2 = {
    "deepseek_v2", 2048, {.dense_layers = 0, .experts = 64, .ffn = 1407, .shared = 2}};
constexpr Generation kV3 = {
    "deepseek_v3",
    4096,
    {.dense_layers = 3, .experts = 256, .topk = 8, .ffn = 2048, .shared = 1, .scaling = 2.5}};

ModelConfig read(const HfConfig& hf, const Generation& generation) {
  ModelConfig config =
      read_llama_like(hf, generation.name, {.max_positions = generation.positions});
  read_latent(hf, config);
  read_rope(hf, {}, config);
  read_deepseek_experts(hf, generation.experts, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, {}, hf);
  write_rope(config, {}, hf);
  write_latent(config, hf);
  write_deepseek_experts(config, hf);
}

ModelConfig read_v2(const HfConfig& hf) {
  ModelConfig config = read(hf, kV2);
  config.rotary_interleaved = true;
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  if (!config.moe.any()) return config;
  if (config.add_mlp_bias) hf.reject("mlp_bias", "experts with biases are not supported with it");
  reject_set(hf, "norm_topk_prob", "probabilities of these experts are never normalised");
  config.moe.pre_softmax = true;
  std::string method = hf.text("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    config.moe.num_groups = hf.positive_integer("n_group");
    config.moe.group_topk = hf.positive_integer("topk_group");
    config.moe.group_score_experts = 1;
  } else if (method != "greedy") {
    hf.reject("topk_method", "known ones are greedy and group_limited_greedy");
  }
  return config;
}
void write_v2(const ModelConfig& config, HfConfig& hf) {
  write(config, hf);
  hf.set("mlp_bias", config.has_mlp_bias());
  hf.set("topk_method", config.moe.num_groups > 1 ? "group_limited_greedy" : "greedy");
  hf.set("norm_topk_prob", false);
}

ModelConfig read_v3(const HfConfig& hf) {
  ModelConfig config = read(hf, kV3);
  config.rotary_interleaved = hf.boolean("rope_interleave", true);
  if (config.moe.any()) read_sigmoid_router(hf, 8, 4, config);
  return config;
}
void write_v3(const ModelConfig& config, HfConfig& hf) {
  write(config, hf);
  hf.set("rope_interleave", config.rotary_interleaved);
  hf.set("norm_topk_prob", config.moe.norm_topk_prob);
  hf.set("num_nextn_predict_layers", config.mtp_num_layers);
}

std::vector<WeightRule> weights_v3() {
  std::vector<WeightRule> rules = latent_weights();
  add_mtp_weights(rules);
  return rules;
}

ModelConfig block(const Generation& generation, double mscale) {
  ModelConfig config = llama_block(generation.name);
  config.norm_epsilon = 1e-6;
  config.multi_latent_attention = config.qk_layernorm = config.rotary_interleaved = true;
  config.kv_lora_rank = 512;
  config.qk_head_dim = config.v_head_dim = 128;
  config.qk_pos_emb_head_dim = 64;
  config.rope_scaling.kind = RopeScalingKind::kYarn;
  config.rope_scaling.factor = 40;
  config.rope_scaling.original_max_positions = 4096;
  config.rope_scaling.mscale = config.rope_scaling.mscale_all_dim = mscale;
  return config;
}

ModelConfig v2_lite() {
  ModelConfig config = with_sizes(block(kV2, 0.707), {27, 2048, 10944, 16, 16, 102400, 163840});
  config.moe.num_experts = 64;
  config.moe.topk = 6;
  config.moe.pre_softmax = true;
  config.moe.ffn_hidden_size = 1408;
  config.moe.shared_expert_size = 2 * 1408;
  config.moe.layer_freq = expert_layers(1, 27);
  return config;
}

ModelConfig v3() {
  ModelConfig config = with_sizes(block(kV3, 1.0), {61, 7168, 18432, 128, 128, 129280, 163840});
  config.q_lora_rank = 1536;
  MoeConfig& moe = config.moe;
  moe.num_experts = 256;
  moe.topk = 8;
  set_sigmoid_router(moe);
  moe.num_groups = 8;
  moe.group_topk = 4;
  moe.scaling_factor = 2.5;
  moe.ffn_hidden_size = moe.shared_expert_size = 2048;
  moe.layer_freq = expert_layers(3, 61);
  return config;
}

}  // namespace

ModelFamily deepseek_v2_family() {
  return {.name = kV2.name,
          .architecture = "DeepseekV2ForCausalLM",
          .weight_prefix = "model.",
          .read = read_v2,
          .write = write_v2,
          .weights = latent_weights(),
          .ignored = llama_ignored(),
          .presets = {{"deepseek-v2-lite", v2_lite()}}};
}

ModelFamily deepseek_v3_family() {
  return {.name = kV3.name,
          .architecture = "DeepseekV3ForCausalLM",
          .weight_prefix = "model.",
          .read = read_v3,
          .write = write_v3,
          .weights = weights_v3(),
          .ignored = mtp_ignored(),
          .further_layers = "model.layers.{}.",
          .presets = {{"deepseek-v3", v3()}}};
}

}  // namespace bev
