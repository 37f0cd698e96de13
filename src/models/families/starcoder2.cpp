// StarCoder 2: LayerNorm, biases everywhere, an ungated MLP of tanh GELU, windows, tied.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 4096,
                                     .kv_heads = 2,
                                     .norm_epsilon = 1e-5,
                                     .norm_key = "norm_epsilon",
                                     .tied = true,
                                     .activation = "gelu_pytorch_tanh",
                                     .init_std = 0.018042};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "starcoder2", kDefaults);
  config.normalization = NormKind::kLayerNorm;
  config.gated = false;
  config.add_bias_linear = hf.boolean("use_bias", true);
  read_rope(hf, {}, config);
  set_uniform_windows(hf, read_window(hf, 0), config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, {}, hf);
  write_windows(config, LayerTypes::kFixed, hf);
  hf.set("use_bias", config.add_bias_linear);
  hf.set("residual_dropout", config.hidden_dropout);
  hf.set("embedding_dropout", config.hidden_dropout);
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_weights();
  set_sources(rules, "mlp.linear_fc1", {"mlp.c_fc"});
  set_sources(rules, "mlp.linear_fc2", {"mlp.c_proj"});
  return rules;
}

ModelConfig sized(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                  std::int64_t kv_heads, double base) {
  ModelConfig config = llama_block("starcoder2");
  config.normalization = NormKind::kLayerNorm;
  config.activation = Activation::kGeluTanh;
  config.gated = false;
  config.add_bias_linear = true;
  config.untie_embeddings_and_output_weights = false;
  config.rotary_base = base;
  config.window_size = 4095;
  config.init_method_std = 0.018042;
  return with_sizes(config, {layers, hidden, 4 * hidden, heads, kv_heads, 49152, 16384});
}
}  // namespace

ModelFamily starcoder2_family() {
  return {.name = "starcoder2",
          .architecture = "Starcoder2ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .presets = {{"starcoder2-3b", sized(30, 3072, 24, 2, 999999.4420358813)},
                      {"starcoder2-7b", sized(32, 4608, 36, 4, 1e6)},
                      {"starcoder2-15b", sized(40, 6144, 48, 4, 1e5)}}};
}

}  // namespace bev
