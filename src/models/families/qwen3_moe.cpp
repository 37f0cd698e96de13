// Qwen 3 MoE: attention of Qwen 3, and experts in all layers or in some.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/qwen_like.h"

namespace bev {

namespace {
ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "qwen3_moe", {.max_positions = 32768, .kv_heads = 4});
  read_rope(hf, {}, config);
  set_uniform_windows(hf, hf.boolean("use_sliding_window", false) ? read_window(hf, 4096) : 0,
                      config);
  config.qk_layernorm = true;
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  read_qwen_experts(hf, {.experts = 128, .topk = 8, .ffn = 768}, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, {}, hf);
  write_rope(config, {}, hf);
  write_windows(config, LayerTypes::kFixed, hf);
  hf.set("use_sliding_window", config.window_size > 0);
  hf.set("attention_bias", config.has_proj_bias());
  write_qwen_experts(config, hf);
}

ModelConfig qwen3_30b_a3b() {
  ModelConfig config = qwen_block("qwen3_moe");
  config.qk_layernorm = true;
  config.kv_channels = 128;
  config.moe.num_experts = 128;
  config.moe.topk = 8;
  config.moe.ffn_hidden_size = 768;
  return with_sizes(config, {48, 2048, 6144, 32, 4, 151936, 40960});
}
}  // namespace

ModelFamily qwen3_moe_family() {
  return {.name = "qwen3_moe",
          .architecture = "Qwen3MoeForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_expert_weights(),
          .ignored = llama_ignored(),
          .presets = {{"qwen3-30b-a3b", qwen3_30b_a3b()}}};
}

}  // namespace bev
