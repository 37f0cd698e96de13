#include "models/families/delta_like.h"

#include "base/text.h"
#include "models/families/hf_rope.h"

namespace bev {

namespace {
constexpr const char *kLinear = "linear_attention", *kFull = "full_attention";
constexpr RopeKeys kRope = {.default_percent = 0.25, .partial = true, .equal_axes = true};

LlamaDefaults llama_defaults(const DeltaDefaults& defaults) {
  return {.max_positions = 32768, .kv_heads = defaults.kv_heads, .head_size = 256};
}

// Layers with attention follow each other at a distance of `interval`.
std::string every(std::int64_t interval, std::int64_t layers) {
  std::string kinds;
  for (std::int64_t layer = 1; layer <= layers; ++layer) {
    kinds += layer % interval == 0 ? 'a' : 'g';
  }
  return kinds;
}

std::string read_kinds(const HfConfig& hf, std::int64_t layers) {
  if (!hf.has("layer_types")) {
    return every(hf.positive_integer("full_attention_interval", 4), layers);
  }
  const std::vector<std::string> types = hf.texts("layer_types");
  if (std::ssize(types) != layers) {
    hf.reject("layer_types",
              concat("it must have ", layers, " entries, one for each layer, not ", types.size()));
  }
  std::string kinds;
  for (const std::string& type : types) {
    if (type != kLinear && type != kFull) {
      hf.reject("layer_types", concat("only ", kFull, " and ", kLinear, " are supported"));
    }
    kinds += type == kLinear ? 'g' : 'a';
  }
  return kinds.find('g') == kinds.npos ? "" : kinds;
}

DeltaConfig read_sizes_of_rule(const HfConfig& hf) {
  const DeltaConfig defaults;
  DeltaConfig delta;
  delta.conv_kernel = hf.positive_integer("linear_conv_kernel_dim", defaults.conv_kernel);
  delta.key_head_dim = hf.positive_integer("linear_key_head_dim", defaults.key_head_dim);
  delta.value_head_dim = hf.positive_integer("linear_value_head_dim", defaults.value_head_dim);
  delta.num_key_heads = hf.positive_integer("linear_num_key_heads", defaults.num_key_heads);
  delta.num_value_heads = hf.positive_integer("linear_num_value_heads", defaults.num_value_heads);
  return delta;
}

// What the layers have whatever their sizes.
void make_block(ModelConfig& config) {
  config.apply_layernorm_1p = true;
  config.qk_layernorm = true;
  config.attention_output_gate = true;
}
}  // namespace

ModelConfig read_delta_like(const HfConfig& hf, std::string_view family,
                            const DeltaDefaults& defaults) {
  ModelConfig config = read_llama_like(hf, family, llama_defaults(defaults));
  read_rope(hf, kRope, config);
  make_block(config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  config.hybrid_layer_pattern = read_kinds(hf, config.num_layers);
  config.delta = read_sizes_of_rule(hf);
  return config;
}

void write_delta_like(const ModelConfig& config, const DeltaDefaults& defaults, HfConfig& hf) {
  write_llama_like(config, llama_defaults(defaults), hf);
  write_rope(config, kRope, hf);
  hf.set("attention_bias", config.has_proj_bias());
  std::vector<std::string> types;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    types.emplace_back(config.layer_kind(layer) == 'a' ? kFull : kLinear);
  }
  hf.set("layer_types", types);
  hf.set("linear_conv_kernel_dim", config.delta.conv_kernel);
  hf.set("linear_key_head_dim", config.delta.key_head_dim);
  hf.set("linear_value_head_dim", config.delta.value_head_dim);
  hf.set("linear_num_key_heads", config.delta.num_key_heads);
  hf.set("linear_num_value_heads", config.delta.num_value_heads);
}

void read_shared_experts(const HfConfig& hf, const DeltaDefaults& defaults, ModelConfig& config) {
  read_qwen_experts(hf, defaults.experts, config);
  if (!config.moe.any()) return;
  config.moe.shared_expert_size =
      hf.positive_integer("shared_expert_intermediate_size", defaults.shared_expert);
  config.moe.shared_expert_gate = true;
}

void write_shared_experts(const ModelConfig& config, HfConfig& hf) {
  write_qwen_experts(config, hf);
  if (!config.moe.any()) return;
  hf.set("shared_expert_intermediate_size", config.moe.shared_expert_size);
}

std::vector<WeightRule> delta_like_weights(bool experts) {
  const std::string ours = "decoder.layers.{}.", theirs = "model.layers.{}.";
  const std::string rule = ours + "self_attention.", linear = theirs + "linear_attn.";
  const std::string shared = theirs + "mlp.shared_expert.";
  std::vector<WeightRule> rules = experts ? llama_expert_weights() : llama_weights();
  for (WeightRule& known : rules) {
    if (known.kind == WeightKind::kQkvRows) known.kind = WeightKind::kGatedQkvRows;
  }
  rules.insert(rules.end(), {{rule + "conv1d", {linear + "conv1d"}},
                             {rule + "dt_bias", {linear + "dt_bias"}},
                             {rule + "A_log", {linear + "A_log"}},
                             {rule + "out_norm", {linear + "norm"}},
                             {rule + "out_proj", {linear + "out_proj"}}});
  if (!experts) return rules;
  const std::string to = ours + "mlp.shared_experts.";
  rules.push_back(
      {to + "linear_fc1", {shared + "gate_proj", shared + "up_proj"}, WeightKind::kGateUpRows});
  rules.push_back({to + "linear_fc2", {shared + "down_proj"}});
  rules.push_back({to + "gate", {theirs + "mlp.shared_expert_gate"}});
  return rules;
}

void add_flat_projections(std::vector<WeightRule>& rules) {
  const std::string linear = "model.layers.{}.linear_attn.";
  rules.push_back(
      {"decoder.layers.{}.self_attention.in_proj",
       {linear + "in_proj_qkv", linear + "in_proj_z", linear + "in_proj_b", linear + "in_proj_a"},
       WeightKind::kDeltaRows});
}

ModelConfig delta_sized(std::string_view family, const ModelSizes& sizes,
                        std::int64_t value_heads) {
  ModelConfig config = qwen_block(family);
  make_block(config);
  config.kv_channels = 256;
  config.rotary_base = 1e7;
  config.rotary_percent = 0.25;
  config.hybrid_layer_pattern = every(4, sizes.layers);
  config.delta.num_value_heads = value_heads;
  return with_sizes(config, sizes);
}

}  // namespace bev
