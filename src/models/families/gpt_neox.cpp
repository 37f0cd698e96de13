// GPT-NeoX and Pythia: parallel residual, partial RoPE, LayerNorm, biases.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {
constexpr RopeKeys kRope = {
    .base = "rotary_emb_base", .percent = "rotary_pct", .default_percent = 0.25, .partial = true};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config;
  config.family = "gpt_neox";
  read_sizes(hf, 2048, config);
  read_rope(hf, kRope, config);
  config.norm_epsilon = hf.positive_number("layer_norm_eps", 1e-5);
  config.activation = read_activation(hf, "hidden_act", "gelu");
  config.parallel_residual = hf.boolean("use_parallel_residual", true);
  config.add_bias_linear = hf.boolean("attention_bias", true);
  config.add_mlp_bias = true;
  config.untie_embeddings_and_output_weights = !hf.boolean("tie_word_embeddings", false);
  config.init_method_std = hf.magnitude("initializer_range", 0.02);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_sizes(config, hf);
  write_rope(config, kRope, hf);
  hf.set("layer_norm_eps", config.norm_epsilon);
  hf.set("hidden_act", activation_name(config.activation));
  hf.set("use_parallel_residual", config.parallel_residual);
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("tie_word_embeddings", !config.untie_embeddings_and_output_weights);
  hf.set("initializer_range", config.init_method_std);
  hf.set("attention_dropout", config.attention_dropout);
  hf.set("hidden_dropout", config.hidden_dropout);
}

std::vector<WeightRule> weights() {
  const std::string ours = "decoder.layers.{}.", theirs = "gpt_neox.layers.{}.";
  return {
      {"embedding.word_embeddings", {"gpt_neox.embed_in"}},
      {ours + "input_layernorm", {theirs + "input_layernorm"}},
      {ours + "self_attention.linear_qkv",
       {theirs + "attention.query_key_value"},
       WeightKind::kNeoxQkv},
      {ours + "self_attention.linear_proj", {theirs + "attention.dense"}},
      {ours + "pre_mlp_layernorm", {theirs + "post_attention_layernorm"}},
      {ours + "mlp.linear_fc1", {theirs + "mlp.dense_h_to_4h"}},
      {ours + "mlp.linear_fc2", {theirs + "mlp.dense_4h_to_h"}},
      {"decoder.final_layernorm", {"gpt_neox.final_layer_norm"}},
      {"output_layer", {"embed_out"}, WeightKind::kPlain, "lm_head"},
  };
}

ModelConfig pythia(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                   std::int64_t vocab) {
  ModelConfig config;
  config.family = "gpt_neox";
  config.position_embedding_type = PositionKind::kRope;
  config.rotary_percent = 0.25;
  config.parallel_residual = true;
  config.untie_embeddings_and_output_weights = true;
  return with_sizes(config, {layers, hidden, 4 * hidden, heads, heads, vocab, 2048});
}
}  // namespace

ModelFamily gpt_neox_family() {
  return {.name = "gpt_neox",
          .architecture = "GPTNeoXForCausalLM",
          .weight_prefix = "gpt_neox.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = {".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"},
          .presets = {{"pythia-70m", pythia(6, 512, 8, 50304)},
                      {"pythia-160m", pythia(12, 768, 12, 50304)},
                      {"pythia-410m", pythia(24, 1024, 16, 50304)},
                      {"pythia-1b", pythia(16, 2048, 8, 50304)},
                      {"pythia-1.4b", pythia(24, 2048, 16, 50304)},
                      {"pythia-2.8b", pythia(32, 2560, 32, 50304)},
                      {"pythia-6.9b", pythia(32, 4096, 32, 50432)},
                      {"pythia-12b", pythia(36, 5120, 40, 50688)}}};
}

}  // namespace bev
