// Gemma 2: every other layer windowed, soft caps on scores and logits.
#include "models/families/family_list.h"
#include "models/families/gemma_like.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {
ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_gemma(hf, "gemma2", 8192);
  read_rope(hf, {}, config);
  set_windows(hf, read_window(hf, 4096), all_but_every(2, config.num_layers), LayerTypes::kUsed,
              config);
  config.attn_logit_softcapping = read_cap(hf, "attn_logit_softcapping", 50);
  config.final_logit_softcapping = read_cap(hf, "final_logit_softcapping", 30);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_gemma(config, hf);
  write_rope(config, {}, hf);
  write_cap(hf, "attn_logit_softcapping", config.attn_logit_softcapping);
  write_cap(hf, "final_logit_softcapping", config.final_logit_softcapping);
}

ModelConfig sized(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t heads,
                  std::int64_t head_size, std::int64_t scale_size) {
  ModelConfig config = gemma_sized("gemma2", {layers, hidden, ffn, heads, heads / 2, 256000, 8192},
                                   head_size, scale_size);
  config.window_size = 4095;
  config.window_layers = all_but_every(2, layers);
  config.attn_logit_softcapping = 50;
  config.final_logit_softcapping = 30;
  return config;
}
}  // namespace

ModelFamily gemma2_family() {
  return {.name = "gemma2",
          .architecture = "Gemma2ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = gemma_weights(),
          .ignored = llama_ignored(),
          .default_pad = 0,
          .presets = {{"gemma2-2b", sized(26, 2304, 9216, 8, 256, 256)},
                      {"gemma2-9b", sized(42, 3584, 14336, 16, 256, 256)},
                      {"gemma2-27b", sized(46, 4608, 36864, 32, 128, 144)}}};
}

}  // namespace bev
