#include "models/qwen_like.h"

#include <vector>

#include "models/hf_parts.h"
#include "models/hf_rope.h"

namespace bev {

ModelConfig read_qwen(const HfConfig& hf, std::string_view family, std::int64_t head_size) {
  ModelConfig config =
      read_llama_like(hf, family, {.max_positions = 32768, .kv_heads = 32, .head_size = head_size});
  read_rope(hf, {}, config);
  std::int64_t window = hf.boolean("use_sliding_window", false) ? read_window(hf, 4096) : 0;
  std::int64_t first = hf.count("max_window_layers", 28);
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    layers.push_back(window > 0 && layer >= first ? 1 : 0);
  }
  set_windows(hf, window, layers, LayerTypes::kUsed, config);
  return config;
}

void write_qwen(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, {}, hf);
  write_rope(config, {}, hf);
  write_windows(config, LayerTypes::kUsed, hf);
  std::int64_t first = 0;
  while (first < config.num_layers && !config.windowed(first)) ++first;
  hf.set("use_sliding_window", first < config.num_layers);
  hf.set("max_window_layers", first);
}

ModelConfig qwen_block(std::string_view family) {
  ModelConfig config = llama_block(family);
  config.norm_epsilon = 1e-6;
  config.rotary_base = 1e6;
  return config;
}

}  // namespace bev
