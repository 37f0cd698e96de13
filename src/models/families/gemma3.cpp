// Gemma 3, text only: five windowed layers with their own RoPE base per full layer, QK norm.
#include "models/families/family_list.h"
#include "models/families/gemma_like.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {
constexpr double kBase = 1e6, kLocalBase = 1e4;
constexpr std::int64_t kPattern = 6;

// transformers 5: rope_parameters with one object per kind of layer. transformers 4: rope_theta and
// rope_scaling for full layers, rope_local_base_freq for windowed ones.
void read_gemma3_rope(const HfConfig& hf, ModelConfig& config) {
  HfConfig full, local;
  if (std::optional<HfConfig> both = hf.object("rope_parameters")) {
    if (both->has("rope_type") || both->has("rope_theta")) {
      hf.reject("rope_parameters", "gemma3 has one object for each kind of layer there");
    }
    full = both->object("full_attention").value_or(HfConfig());
    local = both->object("sliding_attention").value_or(HfConfig());
  }
  config.rotary_base = full.positive_number("rope_theta", hf.positive_number("rope_theta", kBase));
  config.rotary_base_local =
      local.positive_number("rope_theta", hf.positive_number("rope_local_base_freq", kLocalBase));
  if (local.text("rope_type", "default") != "default") {
    local.reject("rope_type", "windowed layers are never scaled");
  }
  if (std::optional<HfConfig> scaling = hf.object("rope_scaling"); scaling && !scaling->empty()) {
    full = *scaling;
    config.rotary_base = full.positive_number("rope_theta", config.rotary_base);
  }
  for (const HfConfig& rope : {full, local, hf}) {
    if (rope.positive_number("partial_rotary_factor", 1) != 1) {
      rope.reject("partial_rotary_factor", "this family rotates the whole head");
    }
  }
  config.rope_scaling = read_rope_scaling(hf, full, config.max_position_embeddings);
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_gemma(hf, "gemma3_text", 131072);
  config.qk_layernorm = true;
  read_gemma3_rope(hf, config);
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

  double local_base = config.rotary_base_local > 0 ? config.rotary_base_local : config.rotary_base;
  HfConfig full = rope_object(config.rope_scaling), local = rope_object({}), both;
  if (config.rope_scaling.kind != RopeScalingKind::kDefault) hf.set("rope_scaling", full);
  full.set("rope_theta", config.rotary_base);
  local.set("rope_theta", local_base);
  both.set("full_attention", full);
  both.set("sliding_attention", local);
  hf.set("rope_parameters", both);
  hf.set("rope_theta", config.rotary_base);
  hf.set("rope_local_base_freq", local_base);
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
          .presets = presets()};
}

}  // namespace bev
