// ERNIE 4.5, dense: Llama whose rotation turns neighbouring pairs, tied; one key for all biases.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {
    .max_positions = 131072, .kv_heads = 2, .head_size = 128, .norm_epsilon = 1e-5, .tied = true};
constexpr RopeKeys kRope = {.default_base = 500000.0};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "ernie4_5", kDefaults);
  read_rope(hf, kRope, config);
  config.rotary_interleaved = true;
  config.add_bias_linear = hf.boolean("use_bias", false);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  hf.set("use_bias", config.add_bias_linear);
}

ModelConfig ernie_300m() {
  ModelConfig config = llama_block("ernie4_5");
  config.rotary_base = 500000.0;
  config.rotary_interleaved = true;
  config.kv_channels = 128;
  config.untie_embeddings_and_output_weights = false;
  return with_sizes(config, {18, 1024, 3072, 16, 2, 103424, 131072});
}
}  // namespace

ModelFamily ernie4_5_family() {
  return {.name = "ernie4_5",
          .architecture = "Ernie4_5ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .default_pad = 0,
          .presets = {{"ernie4.5-0.3b", ernie_300m()}}};
}

}  // namespace bev
