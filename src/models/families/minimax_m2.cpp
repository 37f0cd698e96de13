// MiniMax M2: experts in all layers with a sigmoid router and a selection bias, q and k normalised
// over their whole width, a part of each head rotated.
#include <cmath>

#include "models/families/deepseek_like.h"
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 196608, .kv_heads = 8, .head_size = 128};

RopeKeys rope_keys(double percent) {
  return {.default_base = 5e6, .default_percent = percent, .partial = true};
}

void make_minimax(ModelConfig& config) {
  config.qk_layernorm = true;
  config.qk_norm_kind = QkNorm::kWidth;
  set_sigmoid_router(config.moe);
  config.moe.norm_single_prob = true;
}

// Settings that published files have and transformers does not read.
void check_fixed(const HfConfig& hf) {
  for (std::int64_t type : hf.counts("attn_type_list")) {
    if (type != 1) hf.reject("attn_type_list", "only full attention, 1, is supported");
  }
  if (hf.text("scoring_func", "sigmoid") != "sigmoid") {
    hf.reject("scoring_func", "only sigmoid is supported");
  }
  if (hf.text("qk_norm_type", "per_layer") != "per_layer") {
    hf.reject("qk_norm_type", "only per_layer is supported");
  }
  for (const char* key : {"use_qk_norm", "use_routing_bias"}) {
    if (!hf.boolean(key, true)) hf.reject(key, "only true is supported");
  }
  reject_set(hf, "shared_intermediate_size", "shared experts are not supported");
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "minimax_m2", kDefaults);
  check_fixed(hf);
  const auto head = static_cast<double>(config.kv_channels);
  const auto rotated = static_cast<double>(hf.positive_integer("rotary_dim", config.kv_channels));
  read_rope(hf, rope_keys(rotated / head), config);
  make_minimax(config);
  config.moe.num_experts = hf.positive_integer("num_local_experts", 256);
  config.moe.topk = hf.positive_integer("num_experts_per_tok", 8);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, rope_keys(1), hf);
  const double rotated = config.rotary_percent * static_cast<double>(config.kv_channels);
  hf.set("rotary_dim", static_cast<std::int64_t>(std::llround(rotated)));
  if (!config.moe.any()) return;
  hf.set("intermediate_size", config.moe.ffn_hidden_size);  // of one expert
  hf.set("num_local_experts", config.moe.num_experts);
  hf.set("num_experts_per_tok", config.moe.topk);
}

std::vector<WeightRule> weights() {
  const std::string ours = "decoder.layers.{}.mlp.", layer = "model.layers.{}.";
  const std::string moe = layer + "block_sparse_moe.", expert = moe + "experts.{}.";
  std::vector<WeightRule> rules = llama_weights();
  rules.push_back({ours + "router.expert_bias",
                   {moe + "e_score_correction_bias"},
                   WeightKind::kPlain,
                   layer + "mlp.e_score_correction_bias"});
  rules.push_back({ours + "router", {moe + "gate"}, WeightKind::kPlain, layer + "mlp.gate"});
  rules.push_back({ours + "experts.linear_fc1",
                   {expert + "w1", expert + "w3"},
                   WeightKind::kExperts,
                   layer + "mlp.experts.gate_up_proj"});
  rules.push_back({ours + "experts.linear_fc2",
                   {expert + "w2"},
                   WeightKind::kExperts,
                   layer + "mlp.experts.down_proj"});
  return rules;
}

ModelConfig m2() {
  ModelConfig config = llama_block("minimax_m2");
  make_minimax(config);
  config.norm_epsilon = 1e-6;
  config.kv_channels = 128;
  config.rotary_base = 5e6;
  config.rotary_percent = 0.5;
  config.moe.num_experts = 256;
  config.moe.topk = 8;
  return with_sizes(config, {62, 3072, 1536, 48, 8, 200064, 196608});
}
}  // namespace

ModelFamily minimax_m2_family() {
  return {.name = "minimax_m2",
          .architecture = "MiniMaxM2ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .further_layers = "model.layers.{}.",
          .presets = {{"minimax-m2", m2()}}};
}

}  // namespace bev
