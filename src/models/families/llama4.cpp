// Llama 4, text: windows in chunks where layers rotate (neighbouring pairs, then norms of q and k
// without weights); queries that grow with the position where they do not; a shared expert, and one
// whose probability multiplies its input.
#include <algorithm>

#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {
    .max_positions = 131072, .kv_heads = 8, .head_size = 128, .norm_epsilon = 1e-5};
constexpr RopeKeys kRope = {.default_base = 500000.0};
constexpr std::int64_t kChunk = 8192;

void make_llama4(ModelConfig& config) {
  config.rotary_interleaved = true;
  config.moe.score_function = RouterScore::kSigmoid;
  config.moe.norm_topk_prob = false;
  config.moe.scale_input = true;
}

// Chunks of `size` tokens in the layers marked 1.
void set_chunks(std::int64_t size, const std::vector<std::int64_t>& layers, ModelConfig& config) {
  config.window_size = size - 1;
  config.window_layers.clear();
  for (std::int64_t one : layers) config.window_layers.push_back(one != 0 ? 2 : 0);
}

void read_chunks(const HfConfig& hf, ModelConfig& config) {
  std::vector<std::int64_t> marks;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    marks.push_back(config.rotates(layer) ? 1 : 0);
  }
  if (hf.has("layer_types")) {
    marks.clear();
    for (const std::string& type : hf.texts("layer_types")) {
      if (type != "chunked_attention" && type != "full_attention") {
        hf.reject("layer_types", "only chunked_attention and full_attention are supported");
      }
      marks.push_back(type == "chunked_attention" ? 1 : 0);
    }
    if (static_cast<std::int64_t>(marks.size()) != config.num_layers) {
      hf.reject("layer_types", "it must have an entry for each layer");
    }
  }
  if (std::ranges::find(marks, 1) == marks.end()) return;
  const std::int64_t missing = hf.listed("attention_chunk_size") ? 0 : kChunk;
  const std::int64_t size = hf.positive_integer("attention_chunk_size", missing);
  if (size < 2) hf.reject("attention_chunk_size", "some layers attend in chunks of 2 or more");
  set_chunks(size, marks, config);
}

// "moe_layers", or every interleave_moe_layer_step-th layer.
void read_expert_layers(const HfConfig& hf, ModelConfig& config) {
  std::vector<std::int64_t> marks;
  const std::int64_t step = hf.positive_integer("interleave_moe_layer_step", 1);
  const std::vector<std::int64_t> listed = hf.counts("moe_layers");
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool in_list = std::ranges::find(listed, layer) != listed.end();
    marks.push_back(hf.has("moe_layers") ? in_list : (layer + 1) % step == 0);
  }
  if (std::ranges::find(marks, 1) == marks.end()) return;
  make_llama4(config);
  config.moe.layer_freq = marks;
  config.moe.num_experts = hf.positive_integer("num_local_experts", 16);
  config.moe.topk = hf.positive_integer("num_experts_per_tok", 1);
  config.moe.ffn_hidden_size = config.moe.shared_expert_size =
      hf.positive_integer("intermediate_size", 8192);
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "llama4_text", kDefaults);
  config.rotary_interleaved = true;
  config.ffn_hidden_size = hf.positive_integer("intermediate_size_mlp", 16384);
  read_rope(hf, kRope, config);
  read_no_rope(hf, config);
  read_chunks(hf, config);
  config.qk_layernorm = hf.boolean("use_qk_norm", true);
  if (config.qk_layernorm) config.qk_norm_kind = QkNorm::kUnitAfterRope;
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  const auto& still = config.no_rope_layers;
  const bool some = std::ranges::find(still, 1) != still.end();
  if (some && hf.boolean("attn_temperature_tuning", true)) {
    config.rope_scaling.queries = {hf.magnitude("attn_scale", 0.1),
                                   hf.positive_integer("floor_scale", 8192), 1};
  }
  read_expert_layers(hf, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, kRope, hf);
  write_no_rope(config, hf);
  std::vector<std::string> types;
  std::vector<std::int64_t> experts;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    types.emplace_back(config.chunked(layer) ? "chunked_attention" : "full_attention");
    if (config.has_experts(layer)) experts.push_back(layer);
  }
  hf.set("layer_types", types);
  hf.set("attention_chunk_size", config.window_size > 0 ? config.window_size + 1 : kChunk);
  hf.set("use_qk_norm", config.qk_layernorm);
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("attn_temperature_tuning", config.rope_scaling.queries.beta != 0);
  hf.set("attn_scale", config.rope_scaling.queries.beta);
  hf.set("floor_scale", config.rope_scaling.queries.period);
  hf.set("intermediate_size_mlp", config.ffn_hidden_size);
  hf.set("moe_layers", experts);
  if (!config.moe.any()) return;
  hf.set("intermediate_size", config.moe.ffn_hidden_size);
  hf.set("num_local_experts", config.moe.num_experts);
  hf.set("num_experts_per_tok", config.moe.topk);
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_weights();
  const std::string mlp = "feed_forward.", shared = mlp + "shared_expert.";
  set_sources(rules, "mlp.linear_fc1", {mlp + "gate_proj", mlp + "up_proj"},
              WeightKind::kGateUpRows);
  set_sources(rules, "mlp.linear_fc2", {mlp + "down_proj"});
  set_sources(rules, "mlp.router", {mlp + "router"});
  set_sources(rules, "mlp.experts.linear_fc1.weight", {mlp + "experts.gate_up_proj"},
              WeightKind::kExpertColumns);
  set_sources(rules, "mlp.experts.linear_fc2.weight", {mlp + "experts.down_proj"},
              WeightKind::kExpertColumns);
  set_sources(rules, "mlp.shared_experts.linear_fc1", {shared + "gate_proj", shared + "up_proj"},
              WeightKind::kGateUpRows);
  set_sources(rules, "mlp.shared_experts.linear_fc2", {shared + "down_proj"});
  return rules;
}

ModelConfig sized(std::int64_t experts, std::int64_t step, std::int64_t positions, bool norms) {
  constexpr std::int64_t kLayers = 48;
  ModelConfig config = llama_block("llama4_text");
  make_llama4(config);
  config.rotary_base = 500000.0;
  config.kv_channels = 128;
  config.qk_layernorm = norms;
  config.qk_norm_kind = norms ? QkNorm::kUnitAfterRope : QkNorm::kHead;
  config.no_rope_layers = {4};
  config.rope_scaling.queries = {0.1, 8192, 1};
  config.moe.num_experts = experts;
  config.moe.topk = 1;
  config.moe.ffn_hidden_size = config.moe.shared_expert_size = 8192;
  config.moe.layer_freq.clear();
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    config.moe.layer_freq.push_back((layer + 1) % step == 0 ? 1 : 0);
  }
  set_chunks(kChunk, all_but_every(4, kLayers), config);
  return with_sizes(config, {kLayers, 5120, 16384, 40, 8, 202048, positions});
}
}  // namespace

ModelFamily llama4_family() {
  return {.name = "llama4_text",
          .architecture = "Llama4ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .presets = {{"llama4-scout", sized(16, 1, 10485760, true)},
                      {"llama4-maverick", sized(128, 2, 1048576, false)}}};
}

}  // namespace bev
