// EXAONE 4: norms after attention and MLP only, head norms; rotation in windowed layers only, or in
// all if there are no windows.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/olmo_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 2048, .kv_heads = 32, .norm_epsilon = 1e-5};
constexpr std::int64_t kPattern = 4;

void make_exaone(ModelConfig& config) {
  config.norm_placement = NormPlacement::kPost;
  config.qk_layernorm = true;
  config.no_rope_layers.clear();
  for (std::int64_t layer = 0; config.window_size > 0 && layer < config.num_layers; ++layer) {
    config.no_rope_layers.push_back(config.windowed(layer) ? 0 : 1);
  }
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "exaone4", kDefaults);
  read_rope(hf, {}, config);
  const std::int64_t window = read_window(hf, 4096);
  // Published files say "LLLG" there, which transformers can only read next to layer_types. Without
  // windows it divides by this pattern, 0, unless layer_types is given.
  const bool listed = hf.has("layer_types");
  const std::int64_t pattern =
      listed || window == 0 ? kPattern : hf.positive_integer("sliding_window_pattern", kPattern);
  std::vector<std::int64_t> layers(static_cast<std::size_t>(config.num_layers), 0);
  if (window > 0) layers = all_but_every(pattern, config.num_layers);
  set_windows(hf, window, layers, LayerTypes::kUsed, config);
  if (window > 0 && config.window_size == 0) {
    hf.reject("sliding_window", "no layer is windowed, so none would rotate; leave it out");
  }
  make_exaone(config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, {}, hf);
  write_windows(config, LayerTypes::kUsed, hf);
}

RopeScaling scaling() {
  RopeScaling scaling;
  scaling.kind = RopeScalingKind::kLlama3;
  scaling.factor = 16;
  scaling.original_max_positions = 8192;
  return scaling;
}

ModelConfig sized(const ModelSizes& sizes, std::int64_t window) {
  ModelConfig config = with_sizes(llama_block("exaone4"), sizes);
  config.rotary_base = 1e6;
  config.rope_scaling = scaling();
  if (window > 0) {
    config.window_size = window - 1;
    config.window_layers = all_but_every(kPattern, sizes.layers);
  }
  make_exaone(config);
  config.untie_embeddings_and_output_weights = window > 0;
  return config;
}
}  // namespace

ModelFamily exaone4_family() {
  return {.name = "exaone4",
          .architecture = "Exaone4ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = post_norm_weights(),
          .ignored = llama_ignored(),
          .presets = {{"exaone4-1.2b", sized({30, 2048, 4096, 32, 8, 102400, 65536}, 0)},
                      {"exaone4-32b", sized({64, 5120, 27392, 40, 8, 102400, 131072}, 4096)}}};
}

}  // namespace bev
