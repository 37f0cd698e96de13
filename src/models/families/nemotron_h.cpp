// Nemotron-H and Nemotron 3: layers of one part each, Mamba-2, attention without positions, an MLP
// of squared ReLU, or experts with the router of DeepSeek-V3. Time steps are clamped from below.
#include <algorithm>

#include "models/families/deepseek_like.h"
#include "models/families/family_list.h"
#include "models/families/mamba_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 4096,
                                     .kv_heads = 8,
                                     .head_size = 128,
                                     .norm_epsilon = 1e-5,
                                     .norm_key = "layer_norm_epsilon",
                                     .activation_key = "mlp_hidden_act",
                                     .activation = "relu2"};
constexpr MambaKeys kKeys = {.heads = "mamba_num_heads",
                             .head_dim = "mamba_head_dim",
                             .groups = "n_groups",
                             .state = "ssm_state_size",
                             .conv = "conv_kernel",
                             .expand = "expand",
                             .conv_bias = "use_conv_bias",
                             .in_bias = "use_bias",
                             .out_bias = "use_bias",
                             .chunk = "chunk_size"};
constexpr MambaDefaults kMamba = {.head_dim = 64, .groups = 8, .state = 128, .chunk = 128};

struct KindName {
  char kind;
  std::string_view name, old_name;
};
constexpr KindName kKinds[] = {{'M', "linear_attention", "mamba"},
                               {'*', "full_attention", "attention"},
                               {'-', "mlp", "mlp"},
                               {'E', "moe", "moe"}};

std::string read_pattern(const HfConfig& hf) {
  if (!hf.has("layers_block_type")) {
    const std::string pattern = hf.text("hybrid_override_pattern", "ME*-");
    if (pattern.empty() || pattern.find_first_not_of("ME*-") != std::string::npos) {
      hf.reject("hybrid_override_pattern", "layers may be M, E, * and -");
    }
    return pattern;
  }
  std::string pattern;
  for (const std::string& name : hf.texts("layers_block_type")) {
    auto found = std::ranges::find_if(
        kKinds, [&](const KindName& one) { return one.name == name || one.old_name == name; });
    if (found == std::end(kKinds)) {
      hf.reject("layers_block_type", "known are linear_attention, full_attention, mlp and moe");
    }
    pattern += found->kind;
  }
  return pattern;
}

void set_block(ModelConfig& config) {
  config.gated = false;
  config.position_embedding_type = PositionKind::kNone;
}

void read_experts(const HfConfig& hf, ModelConfig& config) {
  MoeConfig& moe = config.moe;
  moe.num_experts = hf.positive_integer("n_routed_experts", 8);
  moe.topk = hf.positive_integer("num_experts_per_tok", 2);
  moe.ffn_hidden_size = hf.positive_integer("moe_intermediate_size", 7688);
  moe.shared_expert_size = hf.positive_integer("moe_shared_expert_intermediate_size", 7688);
  moe.scaling_factor = hf.positive_number("routed_scaling_factor", 1);
  read_sigmoid_router(hf, 1, 1, config);
  if (hf.has("moe_latent_size")) {
    hf.reject("moe_latent_size", "experts that read a latent are not supported");
  }
}

ModelConfig read(const HfConfig& hf) {
  // The layers are those of the pattern, whatever their number in the file.
  HfConfig own = hf;
  const std::string pattern = read_pattern(hf);
  own.set("num_hidden_layers", static_cast<std::int64_t>(pattern.size()));
  if (!own.has("intermediate_size")) own.set("intermediate_size", std::int64_t{21504});
  ModelConfig config = read_llama_like(own, "nemotron_h", kDefaults);
  set_block(config);
  config.hybrid_layer_pattern = pattern;
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  const char* plain = "this family's attention has none";
  if (hf.boolean("attention_bias", false)) hf.reject("attention_bias", plain);
  if (hf.has("sliding_window")) hf.reject("sliding_window", "windows are not supported");
  if (hf.text("mamba_hidden_act", "silu") != "silu") {
    hf.reject("mamba_hidden_act", "only silu is supported");
  }
  if (hf.count("num_nextn_predict_layers", 0) != 0) {
    hf.reject("num_nextn_predict_layers",
              "multi-token prediction of several layers is not supported; set it to 0");
  }
  read_mamba(hf, kKeys, kMamba, 0, config);
  config.mamba.dt_min = hf.magnitude("time_step_min", 0.001);
  if (config.has_layers("E")) read_experts(hf, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  hf.set("attention_bias", false);
  hf.set("mlp_bias", config.has_mlp_bias());
  hf.set("hybrid_override_pattern", config.hybrid_layer_pattern);
  std::vector<std::string> kinds;
  for (char kind : config.hybrid_layer_pattern) {
    kinds.emplace_back(std::ranges::find(kKinds, kind, &KindName::kind)->name);
  }
  hf.set("layers_block_type", kinds);
  hf.set("mamba_hidden_act", "silu");
  write_mamba(config, kKeys, kMamba, hf);
  hf.set("time_step_min", config.mamba.dt_min);
  if (!config.moe.any()) return;
  const MoeConfig& moe = config.moe;
  hf.set("n_routed_experts", moe.num_experts);
  hf.set("num_experts_per_tok", moe.topk);
  hf.set("moe_intermediate_size", moe.ffn_hidden_size);
  hf.set("moe_shared_expert_intermediate_size", moe.shared_expert_size);
  hf.set("n_shared_experts", std::int64_t{1});
  hf.set("routed_scaling_factor", moe.scaling_factor);
  hf.set("norm_topk_prob", moe.norm_topk_prob);
  hf.set("n_group", std::max<std::int64_t>(moe.num_groups, 1));
  hf.set("topk_group", std::max<std::int64_t>(moe.group_topk, 1));
}

std::vector<WeightRule> weights() {
  const std::string ours = "decoder.layers.{}.", layer = "backbone.layers.{}.";
  const std::string mixer = layer + "mixer.";
  std::vector<WeightRule> rules = {
      {ours + "mlp.router.expert_bias", {mixer + "gate.e_score_correction_bias"}},
      {"embedding.word_embeddings", {"backbone.embeddings"}},
      {ours + "input_layernorm", {layer + "norm"}},
      {ours + "pre_mlp_layernorm", {layer + "norm"}},
      {ours + "self_attention.linear_qkv",
       {mixer + "q_proj", mixer + "k_proj", mixer + "v_proj"},
       WeightKind::kQkvRows},
      {ours + "self_attention.linear_proj", {mixer + "o_proj"}},
      {ours + "mlp.linear_fc1", {mixer + "up_proj"}},
      {ours + "mlp.linear_fc2", {mixer + "down_proj"}},
      {ours + "mlp.router", {mixer + "gate"}},
      {ours + "mlp.experts.linear_fc1",
       {mixer + "experts.{}.up_proj"},
       WeightKind::kExperts,
       mixer + "experts.up_proj"},
      {ours + "mlp.experts.linear_fc2",
       {mixer + "experts.{}.down_proj"},
       WeightKind::kExperts,
       mixer + "experts.down_proj"},
      {ours + "mlp.shared_experts.linear_fc1", {mixer + "shared_experts.up_proj"}},
      {ours + "mlp.shared_experts.linear_fc2", {mixer + "shared_experts.down_proj"}},
      {"decoder.final_layernorm", {"backbone.norm_f"}},
      {"output_layer", {"lm_head"}},
  };
  add_mamba_weights(rules, ours + "mixer", layer + "mixer");
  return rules;
}

ModelConfig sized(const ModelSizes& sizes, const char* pattern, std::int64_t mamba_heads) {
  ModelConfig config = llama_block("nemotron_h");
  set_block(config);
  config.activation = Activation::kSquaredRelu;
  config.kv_channels = 128;
  config.hybrid_layer_pattern = pattern;
  config.mamba.num_heads = mamba_heads;
  config.mamba.dt_min = 0.001;
  return with_sizes(config, sizes);
}

ModelConfig nano() {
  ModelConfig config = sized({52, 2688, 1856, 32, 2, 131072, 262144},
                             "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 64);
  set_sigmoid_router(config.moe);
  config.moe.num_experts = 128;
  config.moe.topk = 6;
  config.moe.ffn_hidden_size = 1856;
  config.moe.shared_expert_size = 3712;
  config.moe.norm_single_prob = true;
  config.moe.scaling_factor = 2.5;
  return config;
}
}  // namespace

ModelFamily nemotron_h_family() {
  return {.name = "nemotron_h",
          .architecture = "NemotronHForCausalLM",
          .weight_prefix = "backbone.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .further_layers = "mtp.layers.{}.",
          .presets = {
              {"nemotron-h-8b", sized({52, 4096, 21504, 32, 8, 131072, 8192},
                                      "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", 128)},
              {"nemotron-3-nano-30b-a3b", nano()}}};
}

}  // namespace bev
