// Qwen 3-Next: gated delta layers and gated attention, experts with a gated shared one.
#include "models/families/delta_like.h"
#include "models/families/family_list.h"

namespace bev {

namespace {
constexpr DeltaDefaults kDefaults = {
    .experts = {.experts = 512, .topk = 10, .ffn = 512, .normalised = true}};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_delta_like(hf, "qwen3_next", kDefaults);
  read_shared_experts(hf, kDefaults, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_delta_like(config, kDefaults, hf);
  write_shared_experts(config, hf);
}

std::vector<WeightRule> weights() {
  const std::string linear = "model.layers.{}.linear_attn.";
  std::vector<WeightRule> rules = delta_like_weights(true);
  rules.push_back({"decoder.layers.{}.self_attention.in_proj",
                   {linear + "in_proj_qkvz", linear + "in_proj_ba"},
                   WeightKind::kDeltaGroups});
  return rules;
}

ModelConfig qwen3_next_80b() {
  ModelConfig config = delta_sized("qwen3_next", {48, 2048, 5120, 16, 2, 151936, 262144}, 32);
  config.moe.num_experts = 512;
  config.moe.topk = 10;
  config.moe.ffn_hidden_size = 512;
  config.moe.shared_expert_size = 512;
  config.moe.shared_expert_gate = true;
  return config;
}
}  // namespace

ModelFamily qwen3_next_family() {
  return {.name = "qwen3_next",
          .architecture = "Qwen3NextForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .ignored_parts = {"mtp."},
          .presets = {{"qwen3-next-80b-a3b", qwen3_next_80b()}}};
}

}  // namespace bev
