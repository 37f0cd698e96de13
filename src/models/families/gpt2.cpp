// GPT-2: learned positions, LayerNorm, biases, weights stored transposed.
#include "models/families/family_list.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {
ModelConfig read(const HfConfig& hf) {
  ModelConfig config;
  config.family = "gpt2";
  config.num_layers = read_layer_count(hf, "n_layer");
  config.hidden_size = hf.positive_integer("n_embd");
  config.ffn_hidden_size = hf.positive_integer("n_inner", 4 * config.hidden_size);
  config.num_attention_heads = hf.positive_integer("n_head");
  config.vocab_size = hf.positive_integer("vocab_size");
  config.max_position_embeddings = hf.positive_integer("n_positions", 1024);
  config.norm_epsilon = hf.positive_number("layer_norm_epsilon", 1e-5);
  config.activation = read_activation(hf, "activation_function", "gelu_new");
  if (!hf.boolean("scale_attn_weights", true)) config.softmax_scale = 1;
  config.scale_by_inverse_layer = hf.boolean("scale_attn_by_inverse_layer_idx", false);
  config.untie_embeddings_and_output_weights = !hf.boolean("tie_word_embeddings", true);
  config.init_method_std = hf.magnitude("initializer_range", 0.02);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  hf.set("n_layer", config.num_layers);
  hf.set("n_embd", config.hidden_size);
  hf.set("n_inner", config.ffn_hidden_size);
  hf.set("n_head", config.num_attention_heads);
  hf.set("vocab_size", config.vocab_size);
  hf.set("n_positions", config.max_position_embeddings);
  hf.set("layer_norm_epsilon", config.norm_epsilon);
  hf.set("activation_function", config.activation == Activation::kGeluTanh
                                    ? "gelu_new"
                                    : activation_name(config.activation));
  hf.set("scale_attn_weights", config.softmax_scale != 1);
  hf.set("scale_attn_by_inverse_layer_idx", config.scale_by_inverse_layer);
  hf.set("tie_word_embeddings", !config.untie_embeddings_and_output_weights);
  hf.set("initializer_range", config.init_method_std);
  hf.set("attn_pdrop", config.attention_dropout);
  hf.set("embd_pdrop", config.hidden_dropout);
  hf.set("resid_pdrop", config.hidden_dropout);
}

std::vector<WeightRule> weights() {
  const std::string ours = "decoder.layers.{}.", theirs = "transformer.h.{}.";
  constexpr WeightKind kTransposed = WeightKind::kTranspose;
  return {
      {"embedding.word_embeddings", {"transformer.wte"}},
      {"embedding.position_embeddings", {"transformer.wpe"}},
      {ours + "input_layernorm", {theirs + "ln_1"}},
      {ours + "self_attention.linear_qkv", {theirs + "attn.c_attn"}, kTransposed},
      {ours + "self_attention.linear_proj", {theirs + "attn.c_proj"}, kTransposed},
      {ours + "pre_mlp_layernorm", {theirs + "ln_2"}},
      {ours + "mlp.linear_fc1", {theirs + "mlp.c_fc"}, kTransposed},
      {ours + "mlp.linear_fc2", {theirs + "mlp.c_proj"}, kTransposed},
      {"decoder.final_layernorm", {"transformer.ln_f"}},
      {"output_layer", {"lm_head"}},
  };
}

ModelConfig sized(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  ModelConfig config;
  config.family = "gpt2";
  config.activation = Activation::kGeluTanh;
  return with_sizes(config, {layers, hidden, 4 * hidden, heads, heads, 50257, 1024});
}
}  // namespace

ModelFamily gpt2_family() {
  return {.name = "gpt2",
          .architecture = "GPT2LMHeadModel",
          .weight_prefix = "transformer.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = {".attn.bias", ".attn.masked_bias"},
          .presets = {{"gpt2-124m", sized(12, 768, 12)},
                      {"gpt2-medium", sized(24, 1024, 16)},
                      {"gpt2-large", sized(36, 1280, 20)},
                      {"gpt2-xl", sized(48, 1600, 25)}}};
}

}  // namespace bev
