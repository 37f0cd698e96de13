// Phi-1, 1.5 and 2: a parallel block with one LayerNorm, biases everywhere, also of the head, and a
// part of each head rotated.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 2048,
                                     .norm_epsilon = 1e-5,
                                     .norm_key = "layer_norm_eps",
                                     .activation = "gelu_new"};
constexpr RopeKeys kRope = {.default_percent = 0.5, .partial = true};

void make_phi(ModelConfig& config) {
  config.normalization = NormKind::kLayerNorm;
  config.parallel_residual = true;
  config.norm_placement = NormPlacement::kShared;
  config.gated = false;
  config.add_bias_linear = true;
  config.add_head_bias = true;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "phi", kDefaults);
  make_phi(config);
  read_rope(hf, kRope, config);
  reject_set(hf, "qk_layernorm", "LayerNorms of queries and keys are not supported");
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  hf.set("qk_layernorm", false);
  hf.set("embd_pdrop", config.hidden_dropout);
  hf.set("resid_pdrop", config.hidden_dropout);
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_weights();
  std::erase_if(rules,
                [](const WeightRule& rule) { return rule.name.ends_with(".pre_mlp_layernorm"); });
  set_sources(rules, "self_attention.linear_proj", {"self_attn.dense"});
  set_sources(rules, "mlp.linear_fc1", {"mlp.fc1"});
  set_sources(rules, "mlp.linear_fc2", {"mlp.fc2"});
  for (WeightRule& rule : rules) {
    if (rule.name == "decoder.final_layernorm") rule.sources = {"model.final_layernorm"};
  }
  return rules;
}

ModelConfig sized(const ModelSizes& sizes, double percent) {
  ModelConfig config = llama_block("phi");
  make_phi(config);
  config.activation = Activation::kGeluTanh;
  config.rotary_percent = percent;
  return with_sizes(config, sizes);
}
}  // namespace

ModelFamily phi_family() {
  return {.name = "phi",
          .architecture = "PhiForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .presets = {{"phi-1.5", sized({24, 2048, 8192, 32, 32, 51200, 2048}, 0.5)},
                      {"phi-2", sized({32, 2560, 10240, 32, 32, 51200, 2048}, 0.4)}}};
}

}  // namespace bev
