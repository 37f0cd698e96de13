// Gemma 3, text only: five windowed layers with their own RoPE base per full layer, QK norm.
#include "models/families/family_list.h"
#include "models/families/gemma_like.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {
constexpr double kBase = 1e6, kLocalBase = 1e4;
constexpr std::int64_t kPattern = 6;
constexpr LayeredRopeKeys kRope = {
    .default_base = kBase, .local_key = "rope_local_base_freq", .default_local_base = kLocalBase};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_gemma(hf, "gemma3_text", 131072);
  config.qk_layernorm = true;
  read_layered_rope(hf, kRope, config);
  std::int64_t pattern = hf.positive_integer("sliding_window_pattern", kPattern);
  set_windows(hf, read_window(hf, 4096), all_but_every(pattern, config.num_layers),
              LayerTypes::kUsed, config);
  reject_set(hf, "attn_logit_softcapping", "gemma3 has no cap on attention scores");
  config.final_logit_softcapping = read_cap(hf, "final_logit_softcapping", 0);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_gemma(config, hf);
  write_cap(hf, "final_logit_softcapping", config.final_logit_softcapping);
  write_layered_rope(config, kRope, hf);
}

ModelConfig sized(const ModelSizes& sizes, std::int64_t window, std::int64_t head_size,
                  std::int64_t scale_size) {
  ModelConfig config = gemma_sized("gemma3_text", sizes, head_size, scale_size);
  config.qk_layernorm = true;
  config.rotary_base = kBase;
  config.rotary_base_local = kLocalBase;
  config.window_size = window - 1;
  config.window_layers = all_but_every(kPattern, sizes.layers);
  return config;
}

// Text part of a multimodal model, with RoPE scaled by 8.
ModelConfig large(const ModelSizes& sizes, std::int64_t head_size, std::int64_t scale_size) {
  ModelConfig config = sized(sizes, 1024, head_size, scale_size);
  config.rope_scaling.kind = RopeScalingKind::kLinear;
  config.rope_scaling.factor = 8;
  return config;
}

std::vector<Preset> presets() {
  constexpr std::int64_t kVocab = 262144, kLargeVocab = 262208, kLong = 131072;
  return {
      {"gemma3-270m", sized({18, 640, 2048, 4, 1, kVocab, 32768}, 512, 256, 256)},
      {"gemma3-1b", sized({26, 1152, 6912, 4, 1, kVocab, 32768}, 512, 256, 256)},
      {"gemma3-4b", large({34, 2560, 10240, 8, 4, kLargeVocab, kLong}, 256, 256)},
      {"gemma3-12b", large({48, 3840, 15360, 16, 8, kLargeVocab, kLong}, 256, 256)},
      {"gemma3-27b", large({62, 5376, 21504, 32, 16, kLargeVocab, kLong}, 128, 168)},
  };
}
}  // namespace

ModelFamily gemma3_family() {
  return {.name = "gemma3_text",
          .architecture = "Gemma3ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = gemma_weights(),
          .ignored = llama_ignored(),
          .default_pad = 0,
          .presets = presets()};
}

}  // namespace bev
