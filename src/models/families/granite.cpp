// Granite 3 (dense): Llama with multipliers of embeddings, scores, residual branches and logits.
#include <cmath>

#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 2048};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "granite", kDefaults);
  read_rope(hf, {}, config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  config.embedding_multiplier = hf.positive_number("embedding_multiplier", 1);
  config.softmax_scale = hf.positive_number("attention_multiplier", 1);
  config.residual_multiplier = hf.positive_number("residual_multiplier", 1);
  config.logit_scale = 1 / hf.positive_number("logits_scaling", 1);
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

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, {}, hf);
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("mlp_bias", config.has_mlp_bias());
  hf.set("embedding_multiplier", config.embedding_multiplier);
  hf.set("attention_multiplier", config.attention_scale());
  hf.set("residual_multiplier", config.residual_multiplier);
  hf.set("logits_scaling", reciprocal(config.logit_scale));
}

ModelConfig sized(const ModelSizes& sizes, double scale, double logits) {
  ModelConfig config = llama_block("granite");
  config.rotary_base = 1e7;
  config.embedding_multiplier = 12;
  config.softmax_scale = scale;
  config.residual_multiplier = 0.22;
  config.logit_scale = 1 / logits;
  config.untie_embeddings_and_output_weights = false;
  return with_sizes(config, sizes);
}
}  // namespace

ModelFamily granite_family() {
  return {.name = "granite",
          .architecture = "GraniteForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .presets = {
              {"granite3.3-2b", sized({40, 2048, 8192, 32, 8, 49159, 131072}, 0.015625, 8)},
              {"granite3.3-8b", sized({40, 4096, 12800, 32, 8, 49159, 131072}, 0.0078125, 16)}}};
}

}  // namespace bev
