// Mixtral: Mistral with MoE layers (8 experts, top-2).
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(
      hf, "mixtral", {.max_positions = 131072, .kv_heads = 8, .norm_epsilon = 1e-5});
  read_rope(hf, {.default_base = 1e6}, config);
  set_uniform_windows(hf, read_window(hf, 0), config);
  config.moe.num_experts = hf.positive_integer("num_local_experts", 8);
  config.moe.topk = hf.positive_integer("num_experts_per_tok", 2);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, {}, hf);
  write_rope(config, {}, hf);
  write_windows(config, LayerTypes::kFixed, hf);
  if (!config.moe.any()) return;
  // intermediate_size is the size of one expert.
  hf.set("intermediate_size", config.moe.ffn_hidden_size);
  hf.set("num_local_experts", config.moe.num_experts);
  hf.set("num_experts_per_tok", config.moe.topk);
}

std::vector<WeightRule> weights() {
  const std::string ours = "decoder.layers.{}.mlp.", layer = "model.layers.{}.";
  const std::string moe = layer + "block_sparse_moe.", expert = moe + "experts.{}.";
  std::vector<WeightRule> rules = llama_weights();
  rules.push_back({ours + "router", {moe + "gate"}, WeightKind::kPlain, layer + "mlp.gate"});
  rules.push_back({ours + "experts.linear_fc1",
                   {expert + "w1", expert + "w3"},
                   WeightKind::kExperts,
                   layer + "mlp.experts.gate_up_proj"});
  rules.push_back({ours + "experts.linear_fc2",
                   {expert + "w2"},
                   WeightKind::kExperts,
                   layer + "mlp.experts.down_proj"});
  return rules;
}

ModelConfig sized(const ModelSizes& sizes) {
  ModelConfig config = with_sizes(llama_block("mixtral"), sizes);
  config.rotary_base = 1e6;
  config.moe.num_experts = 8;
  config.moe.topk = 2;
  return config;
}
}  // namespace

ModelFamily mixtral_family() {
  return {.name = "mixtral",
          .architecture = "MixtralForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .presets = {{"mixtral-8x7b", sized({32, 4096, 14336, 32, 8, 32000, 32768})},
                      {"mixtral-8x22b", sized({56, 6144, 16384, 48, 8, 32000, 65536})}}};
}

}  // namespace bev
