// GPT-OSS: learned attention sinks, windows in every other layer, MoE with clamped SwiGLU.
#include <cmath>
#include <limits>

#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {

constexpr RopeKeys kRope = {.default_base = 150000.0};
constexpr std::int64_t kPositions = 131072;

// The block without sizes.
ModelConfig gpt_oss_block() {
  ModelConfig config = llama_block("gpt_oss");
  config.softmax_type = SoftmaxSink::kLearned;
  config.activation = Activation::kQuickGelu;
  config.activation_clamp = 7;
  config.glu_linear_offset = 1;
  config.add_bias_linear = true;
  config.moe.router_bias = true;
  return config;
}

RopeScaling default_scaling() {
  RopeScaling scaling;
  scaling.kind = RopeScalingKind::kYarn;
  scaling.factor = 32;
  scaling.original_max_positions = 4096;
  scaling.truncate = false;
  return scaling;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(
      hf, "gpt_oss",
      {.max_positions = kPositions, .kv_heads = 8, .head_size = 64, .norm_epsilon = 1e-5});
  const ModelConfig block = gpt_oss_block();
  config.softmax_type = block.softmax_type;
  config.activation = block.activation;
  config.glu_linear_offset = block.glu_linear_offset;
  config.activation_clamp =
      hf.infinite("swiglu_limit") ? 0 : hf.positive_number("swiglu_limit", block.activation_clamp);
  if (std::abs(hf.positive_number("swiglu_alpha", 1.702) - 1.702) > 1e-9) {
    hf.reject("swiglu_alpha", "only 1.702 is supported");
  }
  read_rope(hf, kRope, config);
  if (!hf.has("rope_scaling") && !hf.has("rope_parameters")) {
    config.rope_scaling = default_scaling();
  }
  set_windows(hf, read_window(hf, 128), all_but_every(2, config.num_layers), LayerTypes::kUsed,
              config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", true);
  config.add_mlp_bias = true;
  config.moe.num_experts = hf.positive_integer("num_local_experts", 128);
  config.moe.topk = hf.positive_integer("num_experts_per_tok", 4);
  config.moe.router_bias = true;
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, {}, hf);
  hf.set("hidden_act", "silu");
  write_rope(config, kRope, hf);
  write_windows(config, LayerTypes::kUsed, hf);
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("swiglu_limit", config.activation_clamp > 0 ? config.activation_clamp
                                                     : std::numeric_limits<double>::infinity());
  hf.set("swiglu_alpha", 1.702);
  if (!config.moe.any()) return;
  hf.set("intermediate_size", config.moe.ffn_hidden_size);
  hf.set("num_local_experts", config.moe.num_experts);
  hf.set("num_experts_per_tok", config.moe.topk);
}

std::vector<WeightRule> weights() {
  const std::string ours = "decoder.layers.{}.", theirs = "model.layers.{}.";
  const std::string experts = ours + "mlp.experts.", their_experts = theirs + "mlp.experts.";
  std::vector<WeightRule> rules = llama_weights();
  const std::vector<WeightRule> more = {
      {ours + "self_attention.core_attention.softmax_offset", {theirs + "self_attn.sinks"}},
      {ours + "mlp.router", {theirs + "mlp.router"}},
      {experts + "linear_fc1.weight", {their_experts + "gate_up_proj"}, WeightKind::kGateUpColumns},
      {experts + "linear_fc1.bias",
       {their_experts + "gate_up_proj_bias"},
       WeightKind::kGateUpColumns},
      {experts + "linear_fc2.weight", {their_experts + "down_proj"}, WeightKind::kExpertColumns},
      {experts + "linear_fc2.bias", {their_experts + "down_proj_bias"}},
  };
  rules.insert(rules.end(), more.begin(), more.end());
  return rules;
}

ModelConfig sized(std::int64_t layers, std::int64_t experts) {
  ModelConfig config = gpt_oss_block();
  config.kv_channels = 64;
  config = with_sizes(config, {layers, 2880, 2880, 64, 8, 201088, kPositions});
  config.rotary_base = kRope.default_base;
  config.rope_scaling = default_scaling();
  config.window_size = 127;
  config.window_layers = all_but_every(2, layers);
  config.moe.num_experts = experts;
  config.moe.topk = 4;
  return config;
}

}  // namespace

ModelFamily gpt_oss_family() {
  return {.name = "gpt_oss",
          .architecture = "GptOssForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .packed_experts = true,
          .presets = {{"gpt-oss-20b", sized(24, 32)}, {"gpt-oss-120b", sized(36, 128)}}};
}

}  // namespace bev
