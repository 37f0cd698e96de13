#include "models/families/gemma_like.h"

#include <cmath>

namespace bev {

namespace {
double scale_of(double query_size) { return 1.0 / std::sqrt(query_size); }

LlamaDefaults defaults(std::int64_t max_positions) {
  return {.max_positions = max_positions,
          .kv_heads = 4,
          .head_size = 256,
          .tied = true,
          .activation_key = "hidden_activation",
          .activation = "gelu_pytorch_tanh"};
}

// Fields that depend on the sizes.
void make_gemma(ModelConfig& config, double query_size) {
  config.apply_layernorm_1p = true;
  config.norm_placement = NormPlacement::kPreAndPost;
  config.embedding_multiplier = std::sqrt(static_cast<double>(config.hidden_size));
  config.softmax_scale = scale_of(query_size);
}
}  // namespace

ModelConfig read_gemma(const HfConfig& hf, std::string_view family, std::int64_t max_positions) {
  ModelConfig config = read_llama_like(hf, family, defaults(max_positions));
  make_gemma(config, hf.positive_number("query_pre_attn_scalar", 256));
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  return config;
}

void write_gemma(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, defaults(0), hf);
  // transformers requires an integer here.
  double scale = config.attention_scale();
  hf.set("query_pre_attn_scalar", static_cast<std::int64_t>(std::llround(1.0 / (scale * scale))));
  hf.set("attention_bias", config.has_proj_bias());
  write_windows(config, LayerTypes::kUsed, hf);
  // transformers builds the mask of windowed layers even if there are none.
  if (config.window_size == 0) hf.set("sliding_window", config.max_position_embeddings);
}

std::vector<WeightRule> gemma_weights() {
  const std::string ours = "decoder.layers.{}.", theirs = "model.layers.{}.";
  std::vector<WeightRule> rules = llama_weights();
  for (WeightRule& rule : rules) {
    if (rule.name == ours + "pre_mlp_layernorm") {
      rule.sources = {theirs + "pre_feedforward_layernorm"};
    }
  }
  rules.push_back({ours + "post_attention_layernorm", {theirs + "post_attention_layernorm"}});
  rules.push_back({ours + "post_mlp_layernorm", {theirs + "post_feedforward_layernorm"}});
  return rules;
}

double read_cap(const HfConfig& hf, std::string_view key, double missing) {
  if (hf.infinite(key)) return 0;
  return hf.positive_number(key, hf.listed(key) ? 0 : missing);
}

void write_cap(HfConfig& hf, std::string_view key, double cap) {
  if (cap > 0) {
    hf.set(key, cap);
  } else {
    hf.set_null(key);
  }
}

ModelConfig gemma_sized(std::string_view family, const ModelSizes& sizes, std::int64_t head_size,
                        std::int64_t scale_size) {
  ModelConfig config = llama_block(family);
  config.norm_epsilon = 1e-6;
  config.activation = Activation::kGeluTanh;
  config.kv_channels = head_size;
  config.untie_embeddings_and_output_weights = false;
  config = with_sizes(config, sizes);
  make_gemma(config, static_cast<double>(scale_size));
  return config;
}

}  // namespace bev
