// Qwen 3.5 MoE (text): Qwen 3.5 with experts and a gated shared one in all layers. The chosen
// experts' probabilities always sum to 1.
#include "models/families/delta_like.h"
#include "models/families/family_list.h"

namespace bev {

namespace {
constexpr DeltaDefaults kDefaults = {
    .experts = {.experts = 256, .topk = 8, .ffn = 512, .normalised = true}};

ModelConfig read(const HfConfig& hf) {
  // There are no dense MLPs, but transformers 4 wrote their size.
  HfConfig sized = hf;
  if (!hf.has("intermediate_size")) {
    sized.set("intermediate_size", hf.positive_integer("moe_intermediate_size", 512));
  }
  ModelConfig config = read_delta_like(sized, "qwen3_5_moe_text", kDefaults);
  read_shared_experts(hf, kDefaults, config);
  for (const char* key : {"mlp_only_layers", "decoder_sparse_step"}) {
    if (hf.has(key) && config.has_dense_layers()) {
      hf.reject(key, "this family has experts in all layers");
    }
  }
  if (config.moe.pre_softmax) hf.reject("norm_topk_prob", "this family always normalises");
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_delta_like(config, kDefaults, hf);
  write_shared_experts(config, hf);
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = delta_like_weights(true);
  add_flat_projections(rules);
  return rules;
}

ModelConfig qwen3_5_35b() {
  ModelConfig config = delta_sized("qwen3_5_moe_text", {40, 2048, 512, 16, 2, 248320, 262144}, 32);
  config.moe.num_experts = 256;
  config.moe.topk = 8;
  config.moe.ffn_hidden_size = 512;
  config.moe.shared_expert_size = 512;
  config.moe.shared_expert_gate = true;
  return config;
}
}  // namespace

ModelFamily qwen3_5_moe_family() {
  return {.name = "qwen3_5_moe_text",
          .architecture = "Qwen3_5MoeForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .other_prefix = "model.language_model.",
          .ignored_parts = {"mtp.", "model.visual."},
          .presets = {{"qwen3.5-35b-a3b", qwen3_5_35b()}}};
}

}  // namespace bev
