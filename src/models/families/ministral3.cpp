// Ministral 3: Mistral stretched by YaRN, with queries that grow with the position.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {
    .max_positions = 262144, .kv_heads = 8, .head_size = 128, .norm_epsilon = 1e-5};
constexpr RopeKeys kRope = {.default_base = 1e6, .scales_queries = true};

void set_default_rope(ModelConfig& config) {
  config.rotary_base = 1e6;
  config.rope_scaling = {};
  config.rope_scaling.kind = RopeScalingKind::kYarn;
  config.rope_scaling.factor = 16;
  config.rope_scaling.original_max_positions = 16384;
  config.rope_scaling.mscale = config.rope_scaling.mscale_all_dim = 1;
  config.rope_scaling.queries = {0.1, 16384, 0, true};
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "ministral3", kDefaults);
  read_rope(hf, kRope, config);
  if (!hf.has("rope_parameters") && !hf.has("rope_scaling")) set_default_rope(config);
  set_uniform_windows(hf, read_window(hf, 0), config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  write_windows(config, LayerTypes::kFixed, hf);
}

ModelConfig sized(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, bool tied) {
  ModelConfig config = llama_block("ministral3");
  config.kv_channels = 128;
  config.untie_embeddings_and_output_weights = !tied;
  set_default_rope(config);
  return with_sizes(config, {layers, hidden, ffn, 32, 8, 131072, 262144});
}
}  // namespace

ModelFamily ministral3_family() {
  return {.name = "ministral3",
          .architecture = "Ministral3ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .default_pad = 11,
          .presets = {{"ministral3-3b", sized(26, 3072, 9216, true)},
                      {"ministral3-8b", sized(34, 4096, 14336, false)},
                      {"ministral3-14b", sized(40, 5120, 16384, false)}}};
}

}  // namespace bev
