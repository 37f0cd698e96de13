// OLMo 3: OLMo 2 with windows in three of four layers, whose rotation is never stretched.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/olmo_like.h"

namespace bev {

namespace {
constexpr LayeredRopeKeys kRope = {.default_base = 500000.0};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_olmo(hf, "olmo3");
  config.position_embedding_type = PositionKind::kRope;
  read_layered_rope(hf, kRope, config);
  set_windows(hf, read_window(hf, 4096), all_but_every(4, config.num_layers), LayerTypes::kUsed,
              config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_olmo(config, hf);
  write_layered_rope(config, kRope, hf);
  write_windows(config, LayerTypes::kUsed, hf);
}

ModelConfig sized(const ModelSizes& sizes) {
  ModelConfig config = olmo_sized("olmo3", sizes);
  config.window_size = 4095;
  config.window_layers = all_but_every(4, sizes.layers);
  config.rotary_base_local = config.rotary_base;
  config.rope_scaling.kind = RopeScalingKind::kYarn;
  config.rope_scaling.factor = 8;
  config.rope_scaling.original_max_positions = 8192;
  config.rope_scaling.attention_factor = 1.2079441541679836;
  return config;
}
}  // namespace

ModelFamily olmo3_family() {
  return {.name = "olmo3",
          .architecture = "Olmo3ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = post_norm_weights(),
          .ignored = llama_ignored(),
          .default_pad = 1,
          .presets = {{"olmo3-7b", sized({32, 4096, 11008, 32, 32, 100278, 65536})},
                      {"olmo3-32b", sized({64, 5120, 27648, 40, 8, 100278, 65536})}}};
}

}  // namespace bev
