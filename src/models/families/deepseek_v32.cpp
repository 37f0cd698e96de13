// DeepSeek-V3.2: V3 with an indexer that chooses index_topk keys for each query. Up to as many
// tokens it chooses all of them, so that these sequences are V3's; longer ones are refused.
#include "models/families/deepseek_like.h"
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 163840};
constexpr DeepseekExperts kExperts = {
    .dense_layers = 3, .experts = 256, .topk = 8, .ffn = 2048, .shared = 1, .scaling = 2.5};
constexpr std::int64_t kIndexerHeads = 64;

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "deepseek_v32", kDefaults);
  read_latent(hf, config);
  read_rope(hf, {}, config);
  config.rotary_interleaved = true;
  reject_set(hf, "mlp_bias", "biases beside experts are not supported");
  read_deepseek_experts(hf, kExperts, config);
  if (config.moe.any()) read_sigmoid_router(hf, 8, 4, config);
  read_indexer(hf, kIndexerHeads, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, {}, hf);
  write_latent(config, hf);
  write_deepseek_experts(config, hf);
  hf.set("norm_topk_prob", config.moe.norm_topk_prob);
  write_indexer(config, hf);
  hf.set("num_nextn_predict_layers", config.mtp_num_layers);
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = latent_weights();
  add_indexer_weights(rules);
  add_mtp_weights(rules);
  return rules;
}

ModelConfig v32() {
  ModelConfig config = llama_block("deepseek_v32");
  config.norm_epsilon = 1e-6;
  config.multi_latent_attention = config.qk_layernorm = config.rotary_interleaved = true;
  config.q_lora_rank = 1536;
  config.kv_lora_rank = 512;
  config.qk_head_dim = config.v_head_dim = 128;
  config.qk_pos_emb_head_dim = 64;
  config.rope_scaling.kind = RopeScalingKind::kYarn;
  config.rope_scaling.factor = 40;
  config.rope_scaling.original_max_positions = 4096;
  config.rope_scaling.mscale = config.rope_scaling.mscale_all_dim = 1;
  config.indexer.topk = 2048;
  MoeConfig& moe = config.moe;
  set_sigmoid_router(moe);
  moe.num_experts = 256;
  moe.topk = 8;
  moe.num_groups = 8;
  moe.group_topk = 4;
  moe.scaling_factor = 2.5;
  moe.ffn_hidden_size = moe.shared_expert_size = 2048;
  moe.layer_freq = expert_layers(3, 61);
  return with_sizes(config, {61, 7168, 18432, 128, 128, 129280, 163840});
}
}  // namespace

ModelFamily deepseek_v32_family() {
  return {.name = "deepseek_v32",
          .architecture = "DeepseekV32ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = mtp_ignored(),
          .further_layers = "model.layers.{}.",
          .presets = {{"deepseek-v3.2", v32()}}};
}

}  // namespace bev
