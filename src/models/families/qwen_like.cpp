#include "models/families/qwen_like.h"

#include <algorithm>
#include <vector>

#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"

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

void read_qwen_experts(const HfConfig& hf, const QwenExperts& defaults, ModelConfig& config) {
  MoeConfig moe;
  std::int64_t step = hf.positive_integer("decoder_sparse_step", 1);
  std::vector<std::int64_t> dense = hf.counts("mlp_only_layers");
  moe.layer_freq.clear();
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    bool sparse = (layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end();
    moe.layer_freq.push_back(sparse ? 1 : 0);
  }
  if (std::ranges::count(moe.layer_freq, 1) == 0) return;
  // transformers 5 writes the second name for Qwen 3.
  const char* key = hf.has("num_experts") ? "num_experts" : "num_local_experts";
  moe.num_experts = hf.count(key, defaults.experts);
  moe.topk = hf.positive_integer("num_experts_per_tok", defaults.topk);
  moe.ffn_hidden_size = hf.positive_integer("moe_intermediate_size", defaults.ffn);
  // The softmax over the chosen experts equals the softmax over all, normalised over the chosen.
  moe.pre_softmax = !hf.boolean("norm_topk_prob", defaults.normalised);
  config.moe = moe;
}

void write_qwen_experts(const ModelConfig& config, HfConfig& hf) {
  std::vector<std::int64_t> dense;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.moe.in_layer(layer)) dense.push_back(layer);
  }
  hf.set("decoder_sparse_step", std::int64_t{1});
  hf.set("mlp_only_layers", dense);
  hf.set("num_experts", config.moe.num_experts);
  if (!config.moe.any()) return;
  hf.set("num_experts_per_tok", config.moe.topk);
  hf.set("moe_intermediate_size", config.moe.ffn_hidden_size);
  hf.set("norm_topk_prob", !config.moe.pre_softmax);
}

ModelConfig qwen_block(std::string_view family) {
  ModelConfig config = llama_block(family);
  config.norm_epsilon = 1e-6;
  config.rotary_base = 1e6;
  return config;
}

}  // namespace bev
