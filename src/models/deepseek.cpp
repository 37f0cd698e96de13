// DeepSeek-V2 and V3: latent attention.
#include <algorithm>

#include "models/family_list.h"
#include "models/hf_parts.h"
#include "models/hf_rope.h"
#include "models/llama_like.h"

namespace bev {

namespace {

// What the two differ in besides their names.
struct Generation {
  const char* name;
  std::int64_t positions;
  std::int64_t dense_layers;  // for a missing first_k_dense_replace
};
constexpr Generation kV2 = {"deepseek_v2", 2048, 0};
constexpr Generation kV3 = {"deepseek_v3", 4096, 3};

void read_latent(const HfConfig& hf, ModelConfig& config) {
  config.multi_latent_attention = true;
  config.qk_layernorm = true;
  // The norms of latents have an epsilon of their own, which no key sets.
  config.latent_norm_epsilon = 1e-6;
  config.q_lora_rank = hf.positive_integer("q_lora_rank", hf.listed("q_lora_rank") ? 0 : 1536);
  config.kv_lora_rank = hf.positive_integer("kv_lora_rank", 512);
  config.qk_head_dim = hf.positive_integer("qk_nope_head_dim", 128);
  config.qk_pos_emb_head_dim = hf.positive_integer("qk_rope_head_dim", 64);
  config.v_head_dim = hf.positive_integer("v_head_dim", 128);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
}

void write_latent(const ModelConfig& config, HfConfig& hf) {
  if (config.q_lora_rank > 0) {
    hf.set("q_lora_rank", config.q_lora_rank);
  } else {
    hf.set_null("q_lora_rank");
  }
  hf.set("kv_lora_rank", config.kv_lora_rank);
  hf.set("qk_nope_head_dim", config.qk_head_dim);
  hf.set("qk_rope_head_dim", config.qk_pos_emb_head_dim);
  hf.set("v_head_dim", config.v_head_dim);
  hf.set("head_dim", config.qk_pos_emb_head_dim);  // of the rotary table
  hf.set("attention_bias", config.has_proj_bias());
}

ModelConfig read(const HfConfig& hf, const Generation& generation) {
  ModelConfig config =
      read_llama_like(hf, generation.name, {.max_positions = generation.positions});
  read_latent(hf, config);
  read_rope(hf, {}, config);
  if (hf.count("first_k_dense_replace", generation.dense_layers) < config.num_layers) {
    hf.reject("first_k_dense_replace", "layers with experts are not supported");
  }
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, {}, hf);
  write_rope(config, {}, hf);
  write_latent(config, hf);
  hf.set("first_k_dense_replace", config.num_layers);
}

ModelConfig read_v2(const HfConfig& hf) {
  ModelConfig config = read(hf, kV2);
  config.rotary_interleaved = true;
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  return config;
}
void write_v2(const ModelConfig& config, HfConfig& hf) {
  write(config, hf);
  hf.set("mlp_bias", config.has_mlp_bias());
}

ModelConfig read_v3(const HfConfig& hf) {
  ModelConfig config = read(hf, kV3);
  config.rotary_interleaved = hf.boolean("rope_interleave", true);
  return config;
}
void write_v3(const ModelConfig& config, HfConfig& hf) {
  write(config, hf);
  hf.set("rope_interleave", config.rotary_interleaved);
  hf.set("num_nextn_predict_layers", std::int64_t{0});
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_weights();
  const std::string ours = "decoder.layers.{}.self_attention.";
  const std::string theirs = "model.layers.{}.self_attn.";
  std::erase_if(rules, [&](const WeightRule& rule) { return rule.name.starts_with(ours); });
  const std::vector<WeightRule> attention = {
      {ours + "linear_q_proj", {theirs + "q_proj"}},
      {ours + "linear_q_down_proj", {theirs + "q_a_proj"}},
      {ours + "q_layernorm", {theirs + "q_a_layernorm"}},
      {ours + "linear_q_up_proj", {theirs + "q_b_proj"}},
      {ours + "linear_kv_down_proj", {theirs + "kv_a_proj_with_mqa"}},
      {ours + "kv_layernorm", {theirs + "kv_a_layernorm"}},
      {ours + "linear_kv_up_proj", {theirs + "kv_b_proj"}},
      {ours + "linear_proj", {theirs + "o_proj"}},
  };
  rules.insert(rules.end(), attention.begin(), attention.end());
  return rules;
}

}  // namespace

ModelFamily deepseek_v2_family() {
  return {.name = kV2.name,
          .architecture = "DeepseekV2ForCausalLM",
          .weight_prefix = "model.",
          .read = read_v2,
          .write = write_v2,
          .weights = weights(),
          .ignored = llama_ignored()};
}

ModelFamily deepseek_v3_family() {
  return {.name = kV3.name,
          .architecture = "DeepseekV3ForCausalLM",
          .weight_prefix = "model.",
          .read = read_v3,
          .write = write_v3,
          .weights = weights(),
          .ignored = llama_ignored(),
          .further_layers = "model.layers.{}."};
}

}  // namespace bev
