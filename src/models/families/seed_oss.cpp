// Seed-OSS: Llama with biases of q, k and v, and heads of their own size.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 524288, .kv_heads = 8, .head_size = 128};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "seed_oss", kDefaults);
  read_rope(hf, {}, config);
  config.add_qkv_bias = hf.boolean("attention_bias", true);
  config.add_proj_bias = hf.boolean("attention_out_bias", false);
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, {}, hf);
  hf.set("attention_bias", config.has_qkv_bias());
  hf.set("attention_out_bias", config.has_proj_bias());
  hf.set("mlp_bias", config.has_mlp_bias());
  hf.set("residual_dropout", config.hidden_dropout);
}

ModelConfig seed_36b() {
  ModelConfig config = llama_block("seed_oss");
  config.norm_epsilon = 1e-6;
  config.rotary_base = 1e7;
  config.kv_channels = 128;
  config.add_qkv_bias = true;
  return with_sizes(config, {64, 5120, 27648, 80, 8, 155136, 524288});
}
}  // namespace

ModelFamily seed_oss_family() {
  return {.name = "seed_oss",
          .architecture = "SeedOssForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .default_pad = 1,
          .presets = {{"seed-oss-36b", seed_36b()}}};
}

}  // namespace bev
