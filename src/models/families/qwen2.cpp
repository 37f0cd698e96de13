// Qwen 2 and 2.5: Llama with q, k, v biases.
#include "models/families/family_list.h"
#include "models/families/qwen_like.h"

namespace bev {

namespace {
ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_qwen(hf, "qwen2", 0);
  config.add_qkv_bias = true;
  return config;
}

ModelConfig small(const ModelSizes& sizes) {
  ModelConfig config = with_sizes(qwen_block("qwen2"), sizes);
  config.add_qkv_bias = true;
  config.untie_embeddings_and_output_weights = false;
  return config;
}

ModelConfig large(const ModelSizes& sizes, double epsilon) {
  ModelConfig config = small(sizes);
  config.untie_embeddings_and_output_weights = true;
  config.norm_epsilon = epsilon;
  return config;
}

std::vector<Preset> presets() {
  constexpr std::int64_t kVocab = 151936, kLargeVocab = 152064;
  return {
      {"qwen2.5-0.5b", small({24, 896, 4864, 14, 2, kVocab, 32768})},
      {"qwen2.5-1.5b", small({28, 1536, 8960, 12, 2, kVocab, 131072})},
      {"qwen2.5-3b", small({36, 2048, 11008, 16, 2, kVocab, 32768})},
      {"qwen2.5-7b", large({28, 3584, 18944, 28, 4, kLargeVocab, 131072}, 1e-6)},
      {"qwen2.5-14b", large({48, 5120, 13824, 40, 8, kLargeVocab, 131072}, 1e-5)},
      {"qwen2.5-32b", large({64, 5120, 27648, 40, 8, kLargeVocab, 131072}, 1e-5)},
      {"qwen2.5-72b", large({80, 8192, 29568, 64, 8, kLargeVocab, 131072}, 1e-5)},
  };
}
}  // namespace

ModelFamily qwen2_family() {
  return {.name = "qwen2",
          .architecture = "Qwen2ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write_qwen,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .presets = presets()};
}

}  // namespace bev
