// OLMoE: Llama with experts in all layers and q and k normalised over their whole width.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 4096, .norm_epsilon = 1e-5};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "olmoe", kDefaults);
  read_rope(hf, {}, config);
  config.qk_layernorm = true;
  config.qk_norm_kind = QkNorm::kWidth;
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  reject_set(hf, "clip_qkv", "limits of q, k and v are not supported");
  config.moe.num_experts = hf.positive_integer("num_experts", 64);
  config.moe.topk = hf.positive_integer("num_experts_per_tok", 8);
  config.moe.pre_softmax = !hf.boolean("norm_topk_prob", false);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, {}, hf);
  hf.set("attention_bias", config.has_proj_bias());
  if (!config.moe.any()) return;
  hf.set("intermediate_size", config.moe.ffn_hidden_size);  // of one expert
  hf.set("num_experts", config.moe.num_experts);
  hf.set("num_experts_per_tok", config.moe.topk);
  hf.set("norm_topk_prob", !config.moe.pre_softmax);
}

ModelConfig olmoe_7b() {
  ModelConfig config = llama_block("olmoe");
  config.qk_layernorm = true;
  config.qk_norm_kind = QkNorm::kWidth;
  config.moe.num_experts = 64;
  config.moe.topk = 8;
  config.moe.pre_softmax = true;
  return with_sizes(config, {16, 2048, 1024, 16, 16, 50304, 4096});
}
}  // namespace

ModelFamily olmoe_family() {
  return {.name = "olmoe",
          .architecture = "OlmoeForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_expert_weights(),
          .ignored = llama_ignored(),
          .default_pad = 1,
          .presets = {{"olmoe-1b-7b", olmoe_7b()}}};
}

}  // namespace bev
