// StableLM: Llama with LayerNorm and a quarter of each head rotated; in a parallel block attention
// and MLP share one norm.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {
    .max_positions = 4096, .kv_heads = 32, .norm_epsilon = 1e-5, .norm_key = "layer_norm_eps"};
constexpr RopeKeys kRope = {.default_percent = 0.25, .partial = true};

void set_parallel(ModelConfig& config, bool parallel) {
  config.normalization = NormKind::kLayerNorm;
  config.parallel_residual = parallel;
  config.norm_placement = parallel ? NormPlacement::kShared : NormPlacement::kPre;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "stablelm", kDefaults);
  set_parallel(config, hf.boolean("use_parallel_residual", false));
  read_rope(hf, kRope, config);
  config.add_qkv_bias = hf.boolean("use_qkv_bias", false);
  reject_set(hf, "qk_layernorm", "norms with weights of each head are not supported");
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  hf.set("use_parallel_residual", config.parallel_residual);
  hf.set("use_qkv_bias", config.has_qkv_bias());
  hf.set("qk_layernorm", false);
  hf.set("hidden_dropout", config.hidden_dropout);
}

ModelConfig sized(const ModelSizes& sizes, bool bias) {
  ModelConfig config = llama_block("stablelm");
  set_parallel(config, false);
  config.rotary_percent = 0.25;
  config.add_qkv_bias = bias;
  return with_sizes(config, sizes);
}
}  // namespace

ModelFamily stablelm_family() {
  return {.name = "stablelm",
          .architecture = "StableLmForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = llama_weights(),
          .ignored = llama_ignored(),
          .presets = {{"stablelm2-1.6b", sized({24, 2048, 5632, 32, 32, 100352, 4096}, true)},
                      {"stablelm-3b", sized({32, 2560, 6912, 32, 32, 50304, 4096}, false)}}};
}

}  // namespace bev
