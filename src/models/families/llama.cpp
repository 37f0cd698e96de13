// Llama 1, 2 and 3.x.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "llama", {});
  read_rope(hf, {}, config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  set_uniform_windows(hf, 0, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, {}, hf);
  write_rope(config, {}, hf);
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("mlp_bias", config.has_mlp_bias());
}

ModelConfig llama2(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t heads,
                   std::int64_t kv_heads) {
  return with_sizes(llama_block("llama"), {layers, hidden, ffn, heads, kv_heads, 32000, 4096});
}

ModelConfig llama3(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t heads) {
  ModelConfig config =
      with_sizes(llama_block("llama"), {layers, hidden, ffn, heads, 8, 128256, 8192});
  config.rotary_base = 500000.0;
  return config;
}

// Llama 3.1: RoPE scaled from 8192 to 131072 positions.
ModelConfig stretched(ModelConfig config, double factor) {
  config.rope_scaling.kind = RopeScalingKind::kLlama3;
  config.rope_scaling.factor = factor;
  config.rope_scaling.original_max_positions = config.max_position_embeddings;
  config.max_position_embeddings = 131072;
  return config;
}

ModelConfig tied(ModelConfig config) {
  config.untie_embeddings_and_output_weights = false;
  return config;
}

std::vector<Preset> presets() {
  ModelConfig base_8b = llama3(32, 4096, 14336, 32), base_70b = llama3(80, 8192, 28672, 64);
  return {
      {"llama-tiny", with_sizes(llama_block("llama"), {6, 256, 688, 4, 4, 4096, 1024})},
      {"llama2-7b", llama2(32, 4096, 11008, 32, 32)},
      {"llama2-13b", llama2(40, 5120, 13824, 40, 40)},
      {"llama2-70b", llama2(80, 8192, 28672, 64, 8)},
      {"llama3-8b", base_8b},
      {"llama3-70b", base_70b},
      {"llama3.1-8b", stretched(base_8b, 8)},
      {"llama3.1-70b", stretched(base_70b, 8)},
      {"llama3.1-405b", stretched(llama3(126, 16384, 53248, 128), 8)},
      {"llama3.2-1b", tied(stretched(llama3(16, 2048, 8192, 32), 32))},
      {"llama3.2-3b", tied(stretched(llama3(28, 3072, 8192, 24), 32))},
  };
}
}  // namespace

ModelFamily llama_family() {
  return {.name = "llama",
          .architecture = "LlamaForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .presets = presets()};
}

}  // namespace bev
