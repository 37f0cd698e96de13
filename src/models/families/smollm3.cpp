// SmolLM3: Llama in which every fourth layer does not rotate, tied.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 32768, .kv_heads = 4, .tied = true};
constexpr RopeKeys kRope = {.default_base = 2e6};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "smollm3", kDefaults);
  read_rope(hf, kRope, config);
  read_no_rope(hf, config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  // Windows, if any, are in the layers that do not rotate.
  std::int64_t window = hf.boolean("use_sliding_window", false) ? read_window(hf, 0) : 0;
  std::vector<std::int64_t> none(config.no_rope_layers.size(), 0);
  set_windows(hf, window, window > 0 ? config.no_rope_layers : none, LayerTypes::kUsed, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  write_no_rope(config, hf);
  write_windows(config, LayerTypes::kUsed, hf);
  hf.set("use_sliding_window", config.window_size > 0);
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("mlp_bias", config.has_mlp_bias());
}

ModelConfig smollm3_3b() {
  ModelConfig config = llama_block("smollm3");
  config.norm_epsilon = 1e-6;
  config.rotary_base = 5e6;
  config.no_rope_layers = {4};
  config.untie_embeddings_and_output_weights = false;
  return with_sizes(config, {36, 2048, 11008, 16, 4, 128256, 65536});
}
}  // namespace

ModelFamily smollm3_family() {
  return {.name = "smollm3",
          .architecture = "SmolLM3ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .default_pad = 128004,
          .presets = {{"smollm3-3b", smollm3_3b()}}};
}

}  // namespace bev
