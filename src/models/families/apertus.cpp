// Apertus: Llama with norms of q and k, and an ungated MLP of xIELU with learned coefficients,
// which transformers 4 rounds to bf16 in models of any dtype.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {
    .max_positions = 65536, .norm_epsilon = 1e-5, .activation = "xielu"};
constexpr RopeKeys kRope = {.default_base = 12e6};

void set_default_scaling(ModelConfig& config) {
  config.rope_scaling.kind = RopeScalingKind::kLlama3;
  config.rope_scaling.factor = 8;
  config.rope_scaling.original_max_positions = 8192;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "apertus", kDefaults);
  config.gated = false;
  config.qk_layernorm = true;
  read_rope(hf, kRope, config);
  if (!hf.has("rope_parameters") && !hf.has("rope_scaling")) set_default_scaling(config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  if (!hf.boolean("qk_norm", true)) hf.reject("qk_norm", "only true is supported");
  reject_set(hf, "post_norm", "norms after attention and MLP are not supported");
  reject_set(hf, "mlp_bias", "biases of the MLP are not supported");
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  hf.set("attention_bias", config.has_proj_bias());
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_weights();
  set_sources(rules, "input_layernorm", {"attention_layernorm"});
  set_sources(rules, "pre_mlp_layernorm", {"feedforward_layernorm"});
  set_sources(rules, "mlp.linear_fc1", {"mlp.up_proj"});
  set_sources(rules, "mlp.activation.alpha_p", {"mlp.act_fn.alpha_p"});
  set_sources(rules, "mlp.activation.alpha_n", {"mlp.act_fn.alpha_n"});
  set_sources(rules, "mlp.activation.beta", {"mlp.act_fn.beta"}, WeightKind::kScalar);
  set_sources(rules, "mlp.activation.eps", {"mlp.act_fn.eps"}, WeightKind::kScalar);
  return rules;
}

ModelConfig sized(const ModelSizes& sizes) {
  ModelConfig config = llama_block("apertus");
  config.gated = false;
  config.activation = Activation::kXielu;
  config.qk_layernorm = true;
  config.rotary_base = 12e6;
  set_default_scaling(config);
  return with_sizes(config, sizes);
}
}  // namespace

ModelFamily apertus_family() {
  return {.name = "apertus",
          .architecture = "ApertusForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .default_pad = 3,
          .presets = {{"apertus-8b", sized({32, 4096, 21504, 32, 8, 131072, 65536})},
                      {"apertus-70b", sized({80, 8192, 43008, 64, 8, 131072, 65536})}}};
}

}  // namespace bev
