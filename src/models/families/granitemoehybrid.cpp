// Granite 4 H: Mamba-2 or attention in each layer, then an MLP that all tokens pass, with or
// without experts next to it; the multipliers of Granite 3.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/llama_like.h"
#include "models/families/mamba_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 2048};
constexpr MambaKeys kKeys;
constexpr MambaDefaults kMamba;

std::string read_pattern(const HfConfig& hf, std::int64_t layers) {
  if (!hf.has("layer_types")) return std::string(static_cast<std::size_t>(layers), 'm');
  std::string pattern;
  for (const std::string& type : hf.texts("layer_types")) {
    const bool mamba = type == "linear_attention" || type == "mamba";
    if (!mamba && type != "full_attention" && type != "attention") {
      hf.reject("layer_types", "known are linear_attention and full_attention");
    }
    pattern += mamba ? 'm' : 'a';
  }
  if (std::ssize(pattern) != layers) {
    hf.reject("layer_types", concat("it must have ", layers, " entries, one for each layer"));
  }
  return pattern;
}

void read_experts(const HfConfig& hf, ModelConfig& config) {
  const std::int64_t shared = hf.positive_integer("shared_intermediate_size", 1024);
  MoeConfig& moe = config.moe;
  moe.num_experts = hf.count("num_local_experts", 8);
  if (!moe.any()) {
    config.ffn_hidden_size = shared;
    return;
  }
  moe.topk = hf.positive_integer("num_experts_per_tok", 2);
  moe.ffn_hidden_size = config.ffn_hidden_size;
  moe.shared_expert_size = shared;
}

ModelConfig read(const HfConfig& hf) {
  HfConfig own = hf;
  if (!own.has("intermediate_size")) own.set("intermediate_size", std::int64_t{11008});
  ModelConfig config = read_llama_like(own, "granitemoehybrid", kDefaults);
  const std::string positions = hf.text("position_embedding_type", "none");
  if (positions != "rope" && positions != "none" && positions != "nope") {
    hf.reject("position_embedding_type", "it must be rope or null");
  }
  if (positions == "rope") {
    read_rope(hf, {}, config);
  } else {
    config.position_embedding_type = PositionKind::kNone;
  }
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  if (config.activation != Activation::kSilu) {
    hf.reject("hidden_act", "it is the activation of the convolution too; only silu is supported");
  }
  config.embedding_multiplier = hf.positive_number("embedding_multiplier", 1);
  config.softmax_scale = hf.positive_number("attention_multiplier", 1);
  config.residual_multiplier = hf.positive_number("residual_multiplier", 1);
  config.logit_scale = 1 / hf.positive_number("logits_scaling", 1);
  config.hybrid_layer_pattern = read_pattern(hf, config.num_layers);
  read_experts(hf, config);
  if (!config.has_mamba()) return config;
  read_mamba(hf, kKeys, kMamba, config.hidden_size * hf.positive_integer(kKeys.expand, 2), config);
  read_step_limits(hf, config);
  return config;
}

// The number whose reciprocal is `scale` to the last bit, if there is one.
double reciprocal(double scale) {
  for (double one :
       {1 / scale, std::nextafter(1 / scale, 0), std::nextafter(1 / scale, HUGE_VAL)}) {
    if (1 / one == scale) return one;
  }
  return 1 / scale;
}

void write_mixers(const ModelConfig& config, HfConfig& hf) {
  std::vector<std::string> types;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    types.emplace_back(config.layer_kind(layer) == 'm' ? "linear_attention" : "full_attention");
  }
  hf.set("layer_types", types);
  if (!config.has_mamba()) return;
  const std::int64_t width = config.mamba.heads(config.hidden_size) * config.mamba.head_dim;
  hf.set(kKeys.expand, width / config.hidden_size);
  write_mamba(config, kKeys, kMamba, hf);
  write_step_limits(config, hf);
}

void write(const ModelConfig& config, HfConfig& hf) {
  const MoeConfig& moe = config.moe;
  write_llama_like(config, kDefaults, hf);
  if (config.position_embedding_type == PositionKind::kRope) {
    write_rope(config, {}, hf);
    hf.set("position_embedding_type", "rope");
  } else {
    hf.set_null("position_embedding_type");
  }
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("embedding_multiplier", config.embedding_multiplier);
  hf.set("attention_multiplier", config.attention_scale());
  hf.set("residual_multiplier", config.residual_multiplier);
  hf.set("logits_scaling", reciprocal(config.logit_scale));
  hf.set("num_local_experts", moe.num_experts);
  hf.set("shared_intermediate_size", moe.any() ? moe.shared_expert_size : config.ffn_hidden_size);
  if (moe.any()) {
    hf.set("intermediate_size", moe.ffn_hidden_size);
    hf.set("num_experts_per_tok", moe.topk);
  }
  write_mixers(config, hf);
}

std::vector<WeightRule> weights() {
  const std::string mlp = "decoder.layers.{}.mlp.", layer = "model.layers.{}.";
  const std::string experts = layer + "block_sparse_moe.", shared = layer + "shared_mlp.";
  std::vector<WeightRule> rules =
      hybrid_weights({.mlp_norm = "post_attention_layernorm", .final_norm = "norm"});
  std::erase_if(rules, [&](const WeightRule& rule) { return rule.name.starts_with(mlp); });
  for (const char* part : {"", "shared_experts."}) {
    rules.push_back({mlp + part + "linear_fc1", {shared + "input_linear"}});
    rules.push_back({mlp + part + "linear_fc2", {shared + "output_linear"}});
  }
  rules.push_back(
      {mlp + "router", {experts + "router.layer"}, WeightKind::kPlain, experts + "router"});
  rules.push_back({mlp + "experts.linear_fc1", {experts + "input_linear"}});
  rules.push_back({mlp + "experts.linear_fc2", {experts + "output_linear"}});
  return rules;
}

struct Multipliers {
  double scores, logits;
};

// Attention in layers 5, 15, 25 and 35.
ModelConfig sized(const ModelSizes& sizes, std::int64_t mamba_heads, const Multipliers& factors) {
  ModelConfig config = with_sizes(llama_block("granitemoehybrid"), sizes);
  config.position_embedding_type = PositionKind::kNone;
  config.hybrid_layer_pattern = std::string(static_cast<std::size_t>(sizes.layers), 'm');
  for (std::size_t layer = 5; layer < config.hybrid_layer_pattern.size(); layer += 10) {
    config.hybrid_layer_pattern[layer] = 'a';
  }
  config.mamba.num_heads = mamba_heads;
  config.mamba.num_groups = 1;
  config.embedding_multiplier = 12;
  config.residual_multiplier = 0.22;
  config.softmax_scale = factors.scores;
  config.logit_scale = 1 / factors.logits;
  config.untie_embeddings_and_output_weights = false;
  return config;
}

ModelConfig with_experts(ModelConfig config, std::int64_t experts, std::int64_t topk,
                         std::int64_t shared) {
  config.moe.num_experts = experts;
  config.moe.topk = topk;
  config.moe.ffn_hidden_size = config.ffn_hidden_size;
  config.moe.shared_expert_size = shared;
  return config;
}
}  // namespace

ModelFamily granitemoehybrid_family() {
  return {
      .name = "granitemoehybrid",
      .architecture = "GraniteMoeHybridForCausalLM",
      .weight_prefix = "model.",
      .read = read,
      .write = write,
      .weights = weights(),
      .ignored = llama_ignored(),
      .presets = {
          {"granite4-h-micro", sized({40, 2048, 8192, 32, 8, 100352, 131072}, 64, {0.015625, 8})},
          {"granite4-h-tiny",
           with_experts(sized({40, 1536, 512, 12, 4, 100352, 131072}, 48, {0.0078125, 6}), 64, 6,
                        1024)}}};
}

}  // namespace bev
