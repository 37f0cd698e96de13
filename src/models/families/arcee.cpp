// Arcee (AFM): Llama with an ungated MLP of squared ReLU.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {
    .max_positions = 4096, .norm_epsilon = 1e-5, .activation = "relu2"};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "arcee", kDefaults);
  config.gated = false;
  read_rope(hf, {}, config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, {}, hf);
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("mlp_bias", config.has_mlp_bias());
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_weights();
  set_sources(rules, "mlp.linear_fc1", {"mlp.up_proj"});
  return rules;
}

ModelConfig afm() {
  ModelConfig config = llama_block("arcee");
  config.activation = Activation::kSquaredRelu;
  config.gated = false;
  config.kv_channels = 128;
  config.rope_scaling.kind = RopeScalingKind::kYarn;
  config.rope_scaling.factor = 20;
  config.rope_scaling.original_max_positions = 4096;
  return with_sizes(config, {36, 2560, 18432, 20, 4, 128004, 65536});
}
}  // namespace

ModelFamily arcee_family() {
  return {.name = "arcee",
          .architecture = "ArceeForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .presets = {{"afm-4.5b", afm()}}};
}

}  // namespace bev
