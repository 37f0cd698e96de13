// ERNIE 4.5 with experts in a range of layers: the softmax over all experts plus a bias chooses,
// and the chosen ones share the probability; a shared expert.
#include <algorithm>

#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {
    .max_positions = 131072, .kv_heads = 4, .norm_epsilon = 1e-5, .tied = true};
constexpr RopeKeys kRope = {.default_base = 500000.0};

std::vector<std::int64_t> marks(std::int64_t layers, std::int64_t first, std::int64_t last,
                                std::int64_t interval) {
  std::vector<std::int64_t> out;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    out.push_back((layer + 1) % interval == 0 && layer >= first && layer <= last ? 1 : 0);
  }
  return out;
}

void read_experts(const HfConfig& hf, ModelConfig& config) {
  const std::int64_t last = hf.integer("moe_layer_end_index", -1);
  MoeConfig moe;
  moe.layer_freq = marks(config.num_layers, hf.count("moe_layer_start_index", 1),
                         last == -1 ? config.num_layers - 1 : last,
                         hf.positive_integer("moe_layer_interval", 1));
  if (std::ranges::find(moe.layer_freq, 1) == moe.layer_freq.end()) return;
  moe.num_experts = hf.positive_integer("moe_num_experts", 64);
  moe.topk = hf.positive_integer("moe_k", 6);
  moe.ffn_hidden_size = hf.positive_integer("moe_intermediate_size", 1536);
  moe.shared_expert_size = moe.ffn_hidden_size * hf.count("moe_num_shared_experts", 2);
  moe.expert_bias = true;
  config.moe = moe;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "ernie4_5_moe", kDefaults);
  read_rope(hf, kRope, config);
  config.rotary_interleaved = true;
  reject_set(hf, "use_bias", "biases beside experts are not supported");
  if (hf.positive_number("moe_norm_min", 1e-12) > 1e-6) {
    hf.reject("moe_norm_min", "probabilities of chosen experts are divided by their sum alone");
  }
  read_experts(hf, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  hf.set("use_bias", false);
  const MoeConfig& moe = config.moe;
  std::int64_t first = 0, last = config.num_layers - 1;
  while (first < config.num_layers && !moe.in_layer(first)) ++first;
  while (last > first && !moe.in_layer(last)) --last;
  hf.set("moe_layer_start_index", first);
  hf.set("moe_layer_end_index", last);
  hf.set("moe_layer_interval", std::int64_t{1});
  if (!moe.any()) return;
  hf.set("moe_num_experts", moe.num_experts);
  hf.set("moe_k", moe.topk);
  hf.set("moe_intermediate_size", moe.ffn_hidden_size);
  hf.set("moe_num_shared_experts", moe.shared_expert_size / moe.ffn_hidden_size);
}

std::vector<WeightRule> weights() {
  const std::string mlp = "mlp.shared_experts.";
  const std::string bias = "model.layers.{}.mlp.moe_statics.e_score_correction_bias";
  std::vector<WeightRule> rules = llama_expert_weights();
  rules.insert(rules.begin(),
               {"decoder.layers.{}.mlp.router.expert_bias", {bias}, WeightKind::kUnitRow});
  set_sources(rules, mlp + "linear_fc1", {mlp + "gate_proj", mlp + "up_proj"},
              WeightKind::kGateUpRows);
  set_sources(rules, mlp + "linear_fc2", {mlp + "down_proj"});
  return rules;
}

ModelConfig sized(const ModelSizes& sizes, std::int64_t ffn, std::int64_t topk,
                  std::int64_t first) {
  ModelConfig config = llama_block("ernie4_5_moe");
  config.rotary_base = 500000.0;
  config.rotary_interleaved = true;
  config.untie_embeddings_and_output_weights = false;
  config.moe.num_experts = 64;
  config.moe.topk = topk;
  config.moe.ffn_hidden_size = ffn;
  config.moe.expert_bias = true;
  config.moe.layer_freq = marks(sizes.layers, first, sizes.layers - 1, 1);
  return with_sizes(config, sizes);
}

std::vector<Preset> presets() {
  ModelConfig small = sized({28, 2560, 12288, 20, 4, 103424, 131072}, 1536, 6, 1);
  small.moe.shared_expert_size = 2 * 1536;
  ModelConfig large = sized({54, 8192, 28672, 64, 8, 103424, 131072}, 3584, 8, 3);
  large.untie_embeddings_and_output_weights = true;
  return {{"ernie4.5-21b-a3b", small}, {"ernie4.5-300b-a47b", large}};
}
}  // namespace

ModelFamily ernie4_5_moe_family() {
  return {.name = "ernie4_5_moe",
          .architecture = "Ernie4_5_MoeForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .further_layers = "model.layers.{}.",
          .default_pad = 0,
          .presets = presets()};
}

}  // namespace bev
