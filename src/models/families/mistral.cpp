// Mistral: Llama with a sliding window in all layers or in none.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "mistral", {.max_positions = 131072, .kv_heads = 8});
  read_rope(hf, {}, config);
  set_uniform_windows(hf, read_window(hf, 4096), config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, {}, hf);
  write_rope(config, {}, hf);
  write_windows(config, LayerTypes::kFixed, hf);
}

ModelConfig mistral_7b() {
  ModelConfig config = with_sizes(llama_block("mistral"), {32, 4096, 14336, 32, 8, 32000, 32768});
  config.window_size = 4095;
  return config;
}
}  // namespace

ModelFamily mistral_family() {
  return {.name = "mistral",
          .architecture = "MistralForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .presets = {{"mistral-7b", mistral_7b()}}};
}

}  // namespace bev
