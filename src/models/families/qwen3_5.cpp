// Qwen 3.5 (text): gated delta layers and gated attention with a dense MLP. Rotary positions have
// three axes for images, which are equal for text. Files of the models with a vision tower have the
// text model under "model.language_model."; the tower is not read.
#include "models/families/delta_like.h"
#include "models/families/family_list.h"

namespace bev {

namespace {
constexpr DeltaDefaults kDefaults = {.kv_heads = 4};

ModelConfig read(const HfConfig& hf) { return read_delta_like(hf, "qwen3_5_text", kDefaults); }

void write(const ModelConfig& config, HfConfig& hf) { write_delta_like(config, kDefaults, hf); }

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = delta_like_weights(false);
  add_flat_projections(rules);
  return rules;
}

ModelConfig qwen3_5_small() {
  ModelConfig config = delta_sized("qwen3_5_text", {24, 1024, 3584, 8, 2, 248320, 262144}, 16);
  config.untie_embeddings_and_output_weights = false;
  return config;
}
}  // namespace

ModelFamily qwen3_5_family() {
  return {.name = "qwen3_5_text",
          .architecture = "Qwen3_5ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .other_prefix = "model.language_model.",
          .ignored_parts = {"mtp.", "model.visual."},
          .presets = {{"qwen3.5-0.8b", qwen3_5_small()},
                      {"qwen3.5-9b",
                       delta_sized("qwen3_5_text", {32, 4096, 12288, 16, 4, 248320, 262144}, 32)}}};
}

}  // namespace bev
