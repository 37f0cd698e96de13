#include "models/families/llama_like.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/text.h"

namespace bev {

ModelConfig llama_block(std::string_view family) {
  ModelConfig config;
  config.family = family;
  config.position_embedding_type = PositionKind::kRope;
  config.normalization = NormKind::kRmsNorm;
  config.norm_epsilon = 1e-5;
  config.activation = Activation::kSilu;
  config.gated = true;
  config.add_bias_linear = false;
  config.untie_embeddings_and_output_weights = true;
  return config;
}

ModelConfig read_llama_like(const HfConfig& hf, std::string_view family,
                            const LlamaDefaults& defaults) {
  ModelConfig config = llama_block(family);
  read_sizes(hf, defaults.max_positions, config);
  bool default_groups = defaults.kv_heads > 0 && !hf.listed("num_key_value_heads");
  config.num_query_groups = hf.positive_integer(
      "num_key_value_heads", default_groups ? defaults.kv_heads : config.num_attention_heads);
  config.kv_channels = hf.positive_integer(
      "head_dim", defaults.head_size > 0 ? defaults.head_size
                                         : config.hidden_size / config.num_attention_heads);
  config.norm_epsilon = hf.positive_number(defaults.norm_key, defaults.norm_epsilon);
  config.activation = read_activation(hf, defaults.activation_key, defaults.activation);
  config.untie_embeddings_and_output_weights = !hf.boolean("tie_word_embeddings", defaults.tied);
  config.init_method_std = hf.magnitude("initializer_range", defaults.init_std);
  return config;
}

void write_llama_like(const ModelConfig& config, const LlamaDefaults& defaults, HfConfig& hf) {
  write_sizes(config, hf);
  hf.set("num_key_value_heads", config.num_query_groups);
  hf.set("head_dim", config.kv_channels);
  hf.set(defaults.norm_key, config.norm_epsilon);
  hf.set(defaults.activation_key, activation_name(config.activation));
  hf.set("tie_word_embeddings", !config.untie_embeddings_and_output_weights);
  hf.set("initializer_range", config.init_method_std);
  hf.set("attention_dropout", config.attention_dropout);
}

std::vector<WeightRule> llama_weights() {
  const std::string ours = "decoder.layers.{}.", theirs = "model.layers.{}.";
  const std::string attention = theirs + "self_attn.", mlp = theirs + "mlp.";
  return {
      {"embedding.word_embeddings", {"model.embed_tokens"}},
      {ours + "input_layernorm", {theirs + "input_layernorm"}},
      {ours + "self_attention.linear_qkv",
       {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
       WeightKind::kQkvRows},
      {ours + "self_attention.q_layernorm", {attention + "q_norm"}},
      {ours + "self_attention.k_layernorm", {attention + "k_norm"}},
      {ours + "self_attention.linear_proj", {attention + "o_proj"}},
      {ours + "pre_mlp_layernorm", {theirs + "post_attention_layernorm"}},
      {ours + "mlp.linear_fc1", {mlp + "gate_proj", mlp + "up_proj"}, WeightKind::kGateUpRows},
      {ours + "mlp.linear_fc2", {mlp + "down_proj"}},
      {"decoder.final_layernorm", {"model.norm"}},
      {"output_layer", {"lm_head"}},
  };
}

std::vector<WeightRule> llama_expert_weights() {
  const std::string ours = "decoder.layers.{}.mlp.", theirs = "model.layers.{}.mlp.";
  const std::string expert = theirs + "experts.{}.";
  std::vector<WeightRule> rules = llama_weights();
  rules.push_back({ours + "router", {theirs + "gate"}});
  rules.push_back({ours + "experts.linear_fc1",
                   {expert + "gate_proj", expert + "up_proj"},
                   WeightKind::kExperts,
                   theirs + "experts.gate_up_proj"});
  rules.push_back({ours + "experts.linear_fc2",
                   {expert + "down_proj"},
                   WeightKind::kExperts,
                   theirs + "experts.down_proj"});
  return rules;
}

void set_sources(std::vector<WeightRule>& rules, std::string_view part,
                 const std::vector<std::string>& sources, WeightKind kind) {
  WeightRule rule{concat("decoder.layers.{}.", part), {}, kind};
  for (const std::string& source : sources) rule.sources.push_back("model.layers.{}." + source);
  auto place = std::ranges::find(rules, rule.name, &WeightRule::name);
  if (place != rules.end()) {
    *place = std::move(rule);
  } else {
    rules.push_back(std::move(rule));
  }
}

std::vector<std::string> llama_ignored() { return {".rotary_emb.inv_freq"}; }

}  // namespace bev
