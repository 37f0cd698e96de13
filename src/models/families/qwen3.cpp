// Qwen 3: Llama with QK norm.
#include "models/families/family_list.h"
#include "models/families/qwen_like.h"

namespace bev {

namespace {
ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_qwen(hf, "qwen3", 128);
  config.qk_layernorm = true;
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_qwen(config, hf);
  hf.set("attention_bias", config.has_proj_bias());
}

ModelConfig sized(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t heads,
                  bool tied) {
  ModelConfig config = qwen_block("qwen3");
  config.qk_layernorm = true;
  config.kv_channels = 128;
  config.untie_embeddings_and_output_weights = !tied;
  return with_sizes(config, {layers, hidden, ffn, heads, 8, 151936, 40960});
}
}  // namespace

ModelFamily qwen3_family() {
  return {.name = "qwen3",
          .architecture = "Qwen3ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .presets = {{"qwen3-0.6b", sized(28, 1024, 3072, 16, true)},
                      {"qwen3-1.7b", sized(28, 2048, 6144, 16, true)},
                      {"qwen3-4b", sized(36, 2560, 9728, 32, true)},
                      {"qwen3-8b", sized(36, 4096, 12288, 32, false)},
                      {"qwen3-14b", sized(40, 5120, 17408, 40, false)},
                      {"qwen3-32b", sized(64, 5120, 25600, 64, false)}}};
}

}  // namespace bev
