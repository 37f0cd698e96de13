// HunYuan V1, dense: Llama with norms of q and k after the rotation.
#include <cmath>
#include <optional>

#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 2048, .norm_epsilon = 1e-5};

double stretched(double base, double alpha, std::int64_t head_size) {
  const auto dims = static_cast<double>(head_size);
  return base * std::pow(alpha, dims / (dims - 2));
}

// "dynamic" with an alpha is no dynamic scaling: it changes the base once and for all.
void apply_alpha(const HfConfig& hf, ModelConfig& config) {
  if (config.rope_scaling.kind != RopeScalingKind::kDynamic) return;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::optional<HfConfig> rope = hf.object(key);
    if (!rope || rope->empty()) continue;
    const double alpha = rope->magnitude("alpha", 0);
    if (alpha == 0) return;
    config.rotary_base = stretched(config.rotary_base, alpha, config.kv_channels);
    config.rope_scaling = {};
    return;
  }
}

void make_hunyuan(ModelConfig& config) {
  config.qk_layernorm = true;
  config.qk_norm_kind = QkNorm::kHeadAfterRope;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "hunyuan_v1_dense", kDefaults);
  make_hunyuan(config);
  read_rope(hf, {}, config);
  apply_alpha(hf, config);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  if (!hf.boolean("use_qk_norm", true)) hf.reject("use_qk_norm", "only true is supported");
  reject_set(hf, "use_cla", "layers that share keys are not supported");
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, {}, hf);
  hf.set("attention_bias", config.has_proj_bias());
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_weights();
  set_sources(rules, "self_attention.q_layernorm", {"self_attn.query_layernorm"});
  set_sources(rules, "self_attention.k_layernorm", {"self_attn.key_layernorm"});
  return rules;
}

ModelConfig hunyuan_7b() {
  ModelConfig config = llama_block("hunyuan_v1_dense");
  make_hunyuan(config);
  config.kv_channels = 128;
  config.rotary_base = stretched(10000, 1000, 128);
  config.untie_embeddings_and_output_weights = false;
  return with_sizes(config, {32, 4096, 14336, 32, 8, 128167, 262144});
}
}  // namespace

ModelFamily hunyuan_v1_dense_family() {
  return {.name = "hunyuan_v1_dense",
          .architecture = "HunYuanDenseV1ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .default_pad = 0,
          .presets = {{"hunyuan-7b", hunyuan_7b()}}};
}

}  // namespace bev
