// Gemma 1: Llama with embeddings scaled by the root of the width, norms of 1 + weight, GeGLU, tied.
#include <cmath>

#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
LlamaDefaults defaults(std::string_view activation_key) {
  return {.max_positions = 8192,
          .kv_heads = 16,
          .head_size = 256,
          .tied = true,
          .activation_key = activation_key,
          .activation = "gelu_pytorch_tanh"};
}

void make_gemma(ModelConfig& config) {
  config.apply_layernorm_1p = true;
  config.embedding_multiplier = std::sqrt(static_cast<double>(config.hidden_size));
}

ModelConfig read(const HfConfig& hf) {
  // Published files name the activation twice, and their "gelu" was always the tanh form.
  const char* key = hf.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  ModelConfig config = read_llama_like(hf, "gemma", defaults(key));
  if (config.activation == Activation::kGelu) config.activation = Activation::kGeluTanh;
  make_gemma(config);
  read_rope(hf, {}, config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, defaults("hidden_act"), hf);
  hf.set("hidden_activation", activation_name(config.activation));  // transformers 4
  write_rope(config, {}, hf);
  hf.set("attention_bias", config.has_proj_bias());
}

ModelConfig sized(const ModelSizes& sizes) {
  ModelConfig config = llama_block("gemma");
  config.norm_epsilon = 1e-6;
  config.activation = Activation::kGeluTanh;
  config.kv_channels = 256;
  config.untie_embeddings_and_output_weights = false;
  config = with_sizes(config, sizes);
  make_gemma(config);
  return config;
}
}  // namespace

ModelFamily gemma_family() {
  return {.name = "gemma",
          .architecture = "GemmaForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .default_pad = 0,
          .presets = {{"gemma-2b", sized({18, 2048, 16384, 8, 1, 256000, 8192})},
                      {"gemma-7b", sized({28, 3072, 24576, 16, 16, 256000, 8192})}}};
}

}  // namespace bev
