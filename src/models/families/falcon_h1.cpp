// Falcon-H1: Mamba-2 and attention in parallel in every layer, then SwiGLU; multipliers everywhere.
#include "base/text.h"
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/llama_like.h"
#include "models/families/mamba_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 8192, .kv_heads = 8, .norm_epsilon = 1e-5};
constexpr MambaKeys kKeys = {.out_bias = "projectors_bias"};
constexpr MambaDefaults kMamba;

void read_norm(const HfConfig& hf, MambaConfig& mamba) {
  const bool norms = hf.boolean("mamba_rms_norm", false);
  mamba.norm = norms ? RecurrentNorm::kGroup : RecurrentNorm::kNone;
  mamba.norm_before_gate = hf.boolean("mamba_norm_before_gate", true) && norms;
}

std::vector<double> numbers(const HfConfig& hf, std::string_view key, std::size_t count) {
  if (!hf.has(key)) return std::vector<double>(count, 1.0);
  std::vector<double> list = hf.positive_numbers(key);
  if (list.size() != count) hf.reject(key, concat("it must have ", count, " numbers"));
  return list;
}

void read_multipliers(const HfConfig& hf, ModelConfig& config) {
  auto one = [&](std::string_view key) { return hf.positive_number(key, 1); };
  config.embedding_multiplier = one("embedding_multiplier");
  config.logit_scale = one("lm_head_multiplier");
  // Keys are multiplied before they rotate, which multiplies the scores.
  const double key = one("key_multiplier");
  config.softmax_scale = 0;
  if (key != 1) config.softmax_scale = key * config.attention_scale();
  const std::vector<double> mlp = numbers(hf, "mlp_multipliers", 2);
  config.mlp_gate_multiplier = mlp[0];
  config.mlp_multiplier = mlp[1];
  MambaConfig& mamba = config.mamba;
  mamba.part_multipliers = numbers(hf, "ssm_multipliers", 5);
  mamba.in_multiplier = one("ssm_in_multiplier");
  mamba.out_multiplier = one("ssm_out_multiplier");
  mamba.attention_in_multiplier = one("attention_in_multiplier");
  mamba.attention_out_multiplier = one("attention_out_multiplier");
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "falcon_h1", kDefaults);
  read_rope(hf, {}, config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  if (config.activation != Activation::kSilu) {
    hf.reject("hidden_act", "it is the activation of the convolution too; only silu is supported");
  }
  config.hybrid_layer_pattern = std::string(static_cast<std::size_t>(config.num_layers), 'p');
  const std::int64_t expanded = config.hidden_size * hf.positive_integer(kKeys.expand, 2);
  const bool null = hf.listed("mamba_d_ssm") && !hf.has("mamba_d_ssm");
  const std::int64_t width = hf.positive_integer("mamba_d_ssm", null ? expanded : 1024);
  read_mamba(hf, kKeys, kMamba, width, config);
  read_step_limits(hf, config);
  read_norm(hf, config.mamba);
  read_multipliers(hf, config);
  return config;
}

double key_multiplier(const ModelConfig& config) {
  ModelConfig plain = config;
  plain.softmax_scale = 0;
  return config.attention_scale() / plain.attention_scale();
}

void write(const ModelConfig& config, HfConfig& hf) {
  const MambaConfig& mamba = config.mamba;
  write_llama_like(config, kDefaults, hf);
  write_rope(config, {}, hf);
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("mlp_bias", config.has_mlp_bias());
  hf.set("mamba_d_ssm", mamba.heads(config.hidden_size) * mamba.head_dim);
  write_mamba(config, kKeys, kMamba, hf);
  write_step_limits(config, hf);
  hf.set("mamba_rms_norm", mamba.norm != RecurrentNorm::kNone);
  hf.set("mamba_norm_before_gate", mamba.norm_before_gate || mamba.norm == RecurrentNorm::kNone);
  hf.set("embedding_multiplier", config.embedding_multiplier);
  hf.set("lm_head_multiplier", config.logit_scale);
  hf.set("key_multiplier", key_multiplier(config));
  hf.set("mlp_multipliers", std::vector<double>{config.mlp_gate_multiplier, config.mlp_multiplier});
  hf.set("ssm_multipliers",
         mamba.part_multipliers.empty() ? std::vector<double>(5, 1.0) : mamba.part_multipliers);
  hf.set("ssm_in_multiplier", mamba.in_multiplier);
  hf.set("ssm_out_multiplier", mamba.out_multiplier);
  hf.set("attention_in_multiplier", mamba.attention_in_multiplier);
  hf.set("attention_out_multiplier", mamba.attention_out_multiplier);
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = hybrid_weights({});
  // Both mixers are parts of one of ours.
  const std::string layer = "decoder.layers.{}.";
  for (WeightRule& rule : rules) {
    const std::string attention = layer + "self_attention.", mamba = layer + "mixer.";
    if (rule.name.starts_with(attention)) {
      rule.name = layer + "mixer.attention." + rule.name.substr(attention.size());
    } else if (rule.name.starts_with(mamba)) {
      rule.name = layer + "mixer.mamba." + rule.name.substr(mamba.size());
    }
  }
  return rules;
}

// The multipliers of published models are in their files.
ModelConfig sized(const ModelSizes& sizes, std::int64_t head_size, std::int64_t mamba_heads,
                  std::int64_t state) {
  ModelConfig config = with_sizes(llama_block("falcon_h1"), sizes);
  config.kv_channels = head_size;
  config.rotary_base = 1e11;
  config.hybrid_layer_pattern = std::string(static_cast<std::size_t>(sizes.layers), 'p');
  config.mamba.norm = RecurrentNorm::kNone;
  config.mamba.num_heads = mamba_heads;
  config.mamba.num_groups = 1;
  config.mamba.state_dim = state;
  return config;
}
}  // namespace

ModelFamily falcon_h1_family() {
  return {
      .name = "falcon_h1",
      .architecture = "FalconH1ForCausalLM",
      .weight_prefix = "model.",
      .read = read,
      .write = write,
      .weights = weights(),
      .ignored = llama_ignored(),
      .default_pad = 0,
      .presets = {{"falcon-h1-0.5b", sized({36, 1024, 2048, 8, 2, 32784, 16384}, 64, 24, 128)}}};
}

}  // namespace bev
