// Qwen 1.5 and 2 MoE: Qwen 2 with experts and a gated shared expert.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/qwen_like.h"

namespace bev {

namespace {
ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "qwen2_moe", {.max_positions = 32768, .kv_heads = 16});
  read_rope(hf, {}, config);
  std::int64_t window = hf.boolean("use_sliding_window", false) ? read_window(hf, 4096) : 0;
  std::int64_t end = hf.count("max_window_layers", 28);
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    layers.push_back(window > 0 && layer % 2 == 0 && layer < end ? 1 : 0);
  }
  set_windows(hf, window, layers, LayerTypes::kUsed, config);
  config.add_qkv_bias = hf.boolean("qkv_bias", true);
  read_qwen_experts(hf, {.experts = 60, .topk = 4, .ffn = 1408}, config);
  config.moe.shared_expert_size = hf.positive_integer("shared_expert_intermediate_size", 5632);
  config.moe.shared_expert_gate = true;
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, {}, hf);
  write_rope(config, {}, hf);
  write_windows(config, LayerTypes::kUsed, hf);
  hf.set("use_sliding_window", config.window_size > 0);
  hf.set("max_window_layers", config.num_layers);
  hf.set("qkv_bias", config.has_qkv_bias());
  write_qwen_experts(config, hf);
  if (!config.moe.any()) return;
  hf.set("shared_expert_intermediate_size", config.moe.shared_expert_size);
}

std::vector<WeightRule> weights() {
  const std::string ours = "decoder.layers.{}.mlp.shared_experts.", mlp = "model.layers.{}.mlp.";
  const std::string shared = mlp + "shared_expert.";
  std::vector<WeightRule> rules = llama_expert_weights();
  rules.push_back(
      {ours + "linear_fc1", {shared + "gate_proj", shared + "up_proj"}, WeightKind::kGateUpRows});
  rules.push_back({ours + "linear_fc2", {shared + "down_proj"}});
  rules.push_back({ours + "gate", {mlp + "shared_expert_gate"}});
  return rules;
}

ModelConfig qwen15_moe() {
  ModelConfig config = qwen_block("qwen2_moe");
  config.add_qkv_bias = true;
  config.moe.num_experts = 60;
  config.moe.topk = 4;
  config.moe.pre_softmax = true;
  config.moe.ffn_hidden_size = 1408;
  config.moe.shared_expert_size = 5632;
  config.moe.shared_expert_gate = true;
  return with_sizes(config, {24, 2048, 5632, 16, 16, 151936, 8192});
}
}  // namespace

ModelFamily qwen2_moe_family() {
  return {.name = "qwen2_moe",
          .architecture = "Qwen2MoeForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .presets = {{"qwen1.5-moe-a2.7b", qwen15_moe()}}};
}

}  // namespace bev
