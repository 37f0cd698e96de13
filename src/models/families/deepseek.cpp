// DeepSeek-V2 and V3: MLA, and MoE in all layers but the first ones.
#include <algorithm>

#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {

// Differences between V2 and V3 other than names.
struct Generation {
  const char* name;
  // Defaults of missing keys.
  std::int64_t positions, dense_layers, experts, topk, expert_size, shared;
  double scaling;
};
constexpr Generation kV2 = {"deepseek_v2", 2048, 0, 64, 0, 1407, 2, 1.0};
constexpr Generation kV3 = {"deepseek_v3", 4096, 3, 256, 8, 2048, 1, 2.5};

void read_latent(const HfConfig& hf, ModelConfig& config) {
  config.multi_latent_attention = true;
  config.qk_layernorm = true;
  // The norms of the latents have a fixed epsilon, which no key sets.
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
  hf.set("head_dim", config.qk_pos_emb_head_dim);  // of the RoPE table
  hf.set("attention_bias", config.has_proj_bias());
}

// Marks of MoE layers: all from `dense` on.
std::vector<std::int64_t> expert_layers(std::int64_t dense, std::int64_t layers) {
  std::vector<std::int64_t> marks;
  for (std::int64_t layer = 0; layer < layers; ++layer) marks.push_back(layer >= dense ? 1 : 0);
  return marks;
}

void read_experts(const HfConfig& hf, const Generation& generation, ModelConfig& config) {
  std::int64_t dense = hf.count("first_k_dense_replace", generation.dense_layers);
  if (dense >= config.num_layers) return;
  if (hf.integer("moe_layer_freq", 1) != 1) {
    hf.reject("moe_layer_freq", "experts are supported in every layer from the first on only");
  }
  MoeConfig& moe = config.moe;
  moe.num_experts = hf.positive_integer("n_routed_experts", generation.experts);
  moe.layer_freq = expert_layers(dense, config.num_layers);
  moe.topk = generation.topk > 0 ? hf.positive_integer("num_experts_per_tok", generation.topk)
                                 : hf.positive_integer("num_experts_per_tok");
  moe.ffn_hidden_size = hf.positive_integer("moe_intermediate_size", generation.expert_size);
  moe.shared_expert_size =
      moe.ffn_hidden_size * hf.positive_integer("n_shared_experts", generation.shared);
  moe.scaling_factor = hf.positive_number("routed_scaling_factor", generation.scaling);
}

void write_experts(const ModelConfig& config, HfConfig& hf) {
  const MoeConfig& moe = config.moe;
  std::int64_t dense = 0;
  while (dense < config.num_layers && !moe.in_layer(dense)) ++dense;
  hf.set("first_k_dense_replace", dense);
  if (!moe.any()) return;
  hf.set("n_routed_experts", moe.num_experts);
  hf.set("num_experts_per_tok", moe.topk);
  hf.set("moe_intermediate_size", moe.ffn_hidden_size);
  hf.set("n_shared_experts", moe.shared_expert_size / moe.ffn_hidden_size);
  hf.set("routed_scaling_factor", moe.scaling_factor);
  hf.set("n_group", std::max<std::int64_t>(moe.num_groups, 1));
  hf.set("topk_group", std::max<std::int64_t>(moe.group_topk, 1));
}

ModelConfig read(const HfConfig& hf, const Generation& generation) {
  ModelConfig config =
      read_llama_like(hf, generation.name, {.max_positions = generation.positions});
  read_latent(hf, config);
  read_rope(hf, {}, config);
  read_experts(hf, generation, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, {}, hf);
  write_rope(config, {}, hf);
  write_latent(config, hf);
  write_experts(config, hf);
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
  if (!config.moe.any()) return config;
  MoeConfig& moe = config.moe;
  moe.score_function = RouterScore::kSigmoid;
  moe.expert_bias = true;
  // Also with top-1, where Megatron does not normalise.
  moe.norm_topk_prob = moe.norm_single_prob = hf.boolean("norm_topk_prob", true);
  moe.num_groups = hf.positive_integer("n_group", 8);
  moe.group_topk = hf.positive_integer("topk_group", 4);
  moe.group_score_experts = 2;
  return config;
}
void write_v3(const ModelConfig& config, HfConfig& hf) {
  write(config, hf);
  hf.set("rope_interleave", config.rotary_interleaved);
  hf.set("norm_topk_prob", config.moe.norm_topk_prob);
  hf.set("num_nextn_predict_layers", config.mtp_num_layers);
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_expert_weights();
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
  const std::string mlp = "decoder.layers.{}.mlp.", their_mlp = "model.layers.{}.mlp.";
  const std::string shared = their_mlp + "shared_experts.";
  // Must precede the rule of the router, whose name is a prefix.
  rules.insert(rules.begin(),
               {mlp + "router.expert_bias", {their_mlp + "gate.e_score_correction_bias"}});
  rules.push_back({mlp + "shared_experts.linear_fc1",
                   {shared + "gate_proj", shared + "up_proj"},
                   WeightKind::kGateUpRows});
  rules.push_back({mlp + "shared_experts.linear_fc2", {shared + "down_proj"}});
  return rules;
}

// MTP layers follow the last layer of the model.
std::vector<WeightRule> weights_v3() {
  std::vector<WeightRule> rules = weights(), more;
  const std::string layer = "decoder.layers.{}.", theirs = "model.layers.{}.";
  const std::string depth = "mtp.layers.{}.", appended = "model.layers.{+}.";
  for (WeightRule rule : rules) {
    if (!rule.name.starts_with(layer)) continue;
    rule.name = depth + "transformer_layer." + rule.name.substr(layer.size());
    for (std::string& source : rule.sources) source = appended + source.substr(theirs.size());
    if (!rule.other_source.empty()) {
      rule.other_source = appended + rule.other_source.substr(theirs.size());
    }
    more.push_back(std::move(rule));
  }
  more.push_back({depth + "enorm", {appended + "enorm"}});
  more.push_back({depth + "hnorm", {appended + "hnorm"}});
  more.push_back({depth + "eh_proj", {appended + "eh_proj"}});
  more.push_back({depth + "final_layernorm", {appended + "shared_head.norm"}});
  rules.insert(rules.end(), more.begin(), more.end());
  return rules;
}

// Files repeat the embedding and the head for the MTP layers.
std::vector<std::string> ignored_v3() {
  std::vector<std::string> endings = llama_ignored();
  endings.push_back(".embed_tokens.weight");
  endings.push_back(".shared_head.head.weight");
  return endings;
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
  moe.score_function = RouterScore::kSigmoid;
  moe.expert_bias = true;
  moe.num_groups = 8;
  moe.group_topk = 4;
  moe.group_score_experts = 2;
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
          .weights = weights(),
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
          .ignored = ignored_v3(),
          .further_layers = "model.layers.{}.",
          .presets = {{"deepseek-v3", v3()}}};
}

}  // namespace bev
