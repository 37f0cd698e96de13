// Nemotron (dense: Minitron, Nemotron-4): LayerNorm of 1 + weight, half of each head rotated, an
// ungated MLP of squared ReLU.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 4096,
                                     .norm_epsilon = 1e-5,
                                     .norm_key = "norm_eps",
                                     .activation = "relu2",
                                     .init_std = 0.0134};
constexpr RopeKeys kRope = {.default_percent = 0.5, .partial = true};

void make_nemotron(ModelConfig& config) {
  config.normalization = NormKind::kLayerNorm;
  config.apply_layernorm_1p = true;
  config.gated = false;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "nemotron", kDefaults);
  make_nemotron(config);
  read_rope(hf, kRope, config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("mlp_bias", config.has_mlp_bias());
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_weights();
  set_sources(rules, "mlp.linear_fc1", {"mlp.up_proj"});
  return rules;
}

ModelConfig sized(const ModelSizes& sizes, std::int64_t head_size) {
  ModelConfig config = llama_block("nemotron");
  make_nemotron(config);
  config.activation = Activation::kSquaredRelu;
  config.rotary_percent = 0.5;
  config.kv_channels = head_size;
  config.init_method_std = 0.0134;
  return with_sizes(config, sizes);
}
}  // namespace

ModelFamily nemotron_family() {
  return {.name = "nemotron",
          .architecture = "NemotronForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .presets = {{"minitron-4b", sized({32, 3072, 9216, 24, 8, 256000, 4096}, 128)},
                      {"minitron-8b", sized({32, 4096, 16384, 48, 8, 256000, 4096}, 128)},
                      {"nemotron4-15b", sized({32, 6144, 24576, 48, 8, 256000, 4096}, 128)},
                      {"nemotron4-340b", sized({96, 18432, 73728, 96, 8, 256000, 4096}, 192)}}};
}

}  // namespace bev
