// Cohere 2 (Command R7B, Command A): a parallel block with one LayerNorm without bias, windows in
// three of four layers, which alone rotate (neighbouring pairs), scaled logits, tied.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {
    .max_positions = 8192, .norm_epsilon = 1e-5, .norm_key = "layer_norm_eps", .tied = true};
constexpr std::int64_t kPattern = 4;

void make_cohere(ModelConfig& config) {
  config.normalization = NormKind::kLayerNormWithoutBias;
  config.parallel_residual = true;
  config.norm_placement = NormPlacement::kShared;
  config.rotary_interleaved = true;
  config.no_rope_layers.clear();
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    config.no_rope_layers.push_back(config.windowed(layer) ? 0 : 1);
  }
}

// Settings that published files have and transformers does not read.
void check_fixed(const HfConfig& hf) {
  for (const char* key : {"use_parallel_block", "use_gated_activation"}) {
    if (!hf.boolean(key, true)) hf.reject(key, "only true is supported");
  }
  reject_set(hf, "use_qk_norm", "norms of queries and keys are not supported");
  if (hf.positive_number("rotary_pct", 1) != 1) {
    hf.reject("rotary_pct", "this family rotates the whole head");
  }
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "cohere2", kDefaults);
  check_fixed(hf);
  read_rope(hf, {}, config);
  std::int64_t pattern = hf.positive_integer("sliding_window_pattern", kPattern);
  set_windows(hf, read_window(hf, 4096), all_but_every(pattern, config.num_layers),
              LayerTypes::kUsed, config);
  make_cohere(config);
  config.logit_scale = hf.positive_number("logit_scale", 0.0625);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, {}, hf);
  write_windows(config, LayerTypes::kUsed, hf);
  hf.set("logit_scale", config.logit_scale);
  hf.set("attention_bias", config.has_proj_bias());
}

ModelConfig sized(const ModelSizes& sizes) {
  ModelConfig config = with_sizes(llama_block("cohere2"), sizes);
  config.window_size = 4095;
  config.window_layers = all_but_every(kPattern, sizes.layers);
  make_cohere(config);
  config.rotary_base = 50000.0;
  config.logit_scale = 0.25;
  config.untie_embeddings_and_output_weights = false;
  return config;
}
}  // namespace

ModelFamily cohere2_family() {
  return {.name = "cohere2",
          .architecture = "Cohere2ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .default_pad = 0,
          .presets = {{"command-r7b", sized({32, 4096, 14336, 32, 8, 256000, 132096})},
                      {"command-a", sized({64, 12288, 36864, 96, 8, 256000, 131072})}}};
}

}  // namespace bev
