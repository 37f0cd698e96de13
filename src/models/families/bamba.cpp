// Bamba: Mamba-2 or attention in each layer, then SwiGLU; half of each attention head rotated.
#include <algorithm>

#include "base/text.h"
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/llama_like.h"
#include "models/families/mamba_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 262144, .kv_heads = 8, .norm_epsilon = 1e-5};
constexpr RopeKeys kRope = {.default_percent = 0.5, .partial = true};
constexpr MambaKeys kKeys;
constexpr MambaDefaults kMamba;

// Layers with attention, the others with Mamba-2.
std::string pattern(std::int64_t layers, const std::vector<std::int64_t>& attention) {
  std::string kinds(static_cast<std::size_t>(layers), 'm');
  for (std::int64_t layer : attention) kinds[static_cast<std::size_t>(layer)] = 'a';
  return kinds;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "bamba", kDefaults);
  read_rope(hf, kRope, config);
  // Whatever the file says, transformers rotates half.
  if (config.rotary_percent != 0.5) {
    hf.reject(kRope.percent, "this family rotates half of a head");
  }
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  if (hf.magnitude("z_loss_coefficient", 0) != 0) {
    hf.reject("z_loss_coefficient", "a loss of the logits' size is not supported; set it to 0");
  }
  const std::vector<std::int64_t> attention = hf.counts("attn_layer_indices");
  if (std::ranges::any_of(attention, [&](auto one) { return one >= config.num_layers; })) {
    hf.reject("attn_layer_indices", concat("there are ", config.num_layers, " layers"));
  }
  config.hybrid_layer_pattern = pattern(config.num_layers, attention);
  read_mamba(hf, kKeys, kMamba, config.hidden_size * hf.positive_integer(kKeys.expand, 2), config);
  read_step_limits(hf, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("mlp_bias", config.has_mlp_bias());
  std::vector<std::int64_t> attention;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.layer_kind(layer) == 'a') attention.push_back(layer);
  }
  hf.set("attn_layer_indices", attention);
  const std::int64_t width = config.mamba.heads(config.hidden_size) * config.mamba.head_dim;
  hf.set(kKeys.expand, width / config.hidden_size);
  write_mamba(config, kKeys, kMamba, hf);
  write_step_limits(config, hf);
}

ModelConfig sized(const ModelSizes& sizes, const std::vector<std::int64_t>& attention) {
  ModelConfig config = with_sizes(llama_block("bamba"), sizes);
  config.rotary_percent = 0.5;
  config.hybrid_layer_pattern = pattern(sizes.layers, attention);
  config.mamba.num_heads = 2 * sizes.hidden / 64;
  config.mamba.num_groups = 1;
  return config;
}
}  // namespace

ModelFamily bamba_family() {
  return {.name = "bamba",
          .architecture = "BambaForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = hybrid_weights({}),
          .ignored = llama_ignored(),
          .default_pad = 0,
          .presets = {{"bamba-9b", sized({32, 4096, 14336, 32, 8, 128256, 262144}, {9, 18, 27})}}};
}

}  // namespace bev
