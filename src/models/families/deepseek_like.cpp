#include "models/families/deepseek_like.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/text.h"

namespace bev {

void read_latent(const HfConfig& hf, ModelConfig& config) {
  config.multi_latent_attention = true;
  config.qk_layernorm = true;
  // The norms of the latents have a fixed epsilon, which no key sets.
  config.latent_norm_epsilon = 1e-6;
  config.q_lora_rank = hf.positive_integer("q_lora_rank", hf.listed("q_lora_rank") ? 0 : 1536);
  config.kv_lora_rank = hf.positive_integer("kv_lora_rank", 512);
  config.qk_head_dim = hf.positive_integer("qk_nope_head_dim", 128);
  config.qk_pos_emb_head_dim = hf.positive_integer("qk_rope_head_dim", 64);
  config.v_head_dim = hf.positive_integer("v_head_dim", 128);
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
}

void write_latent(const ModelConfig& config, HfConfig& hf) {
  if (config.q_lora_rank > 0) {
    hf.set("q_lora_rank", config.q_lora_rank);
  } else {
    hf.set_null("q_lora_rank");
  }
  hf.set("kv_lora_rank", config.kv_lora_rank);
  hf.set("qk_nope_head_dim", config.qk_head_dim);
  hf.set("qk_rope_head_dim", config.qk_pos_emb_head_dim);
  hf.set("v_head_dim", config.v_head_dim);
  hf.set("head_dim", config.qk_pos_emb_head_dim);  // of the RoPE table
  hf.set("attention_bias", config.has_proj_bias());
}

std::vector<std::int64_t> expert_layers(std::int64_t dense, std::int64_t layers) {
  std::vector<std::int64_t> marks;
  for (std::int64_t layer = 0; layer < layers; ++layer) marks.push_back(layer >= dense ? 1 : 0);
  return marks;
}

namespace {
// Marks of "mlp_layer_types": 1 for sparse.
std::vector<std::int64_t> read_mlp_types(const HfConfig& hf, std::int64_t layers) {
  std::vector<std::int64_t> marks;
  for (const std::string& type : hf.texts("mlp_layer_types")) {
    if (type != "dense" && type != "sparse") {
      hf.reject("mlp_layer_types", "only dense and sparse are supported");
    }
    marks.push_back(type == "sparse" ? 1 : 0);
  }
  if (static_cast<std::int64_t>(marks.size()) != layers) {
    hf.reject("mlp_layer_types", concat("it must have ", layers, " entries, one for each layer"));
  }
  return marks;
}
}  // namespace

void read_deepseek_experts(const HfConfig& hf, const DeepseekExperts& defaults,
                           ModelConfig& config) {
  std::int64_t dense = hf.count("first_k_dense_replace", defaults.dense_layers);
  std::vector<std::int64_t> layers = expert_layers(dense, config.num_layers);
  if (hf.has("mlp_layer_types")) layers = read_mlp_types(hf, config.num_layers);
  if (std::ranges::find(layers, 1) == layers.end()) return;
  if (hf.integer("moe_layer_freq", 1) != 1) {
    hf.reject("moe_layer_freq", "experts are supported in every layer from the first on only");
  }
  MoeConfig& moe = config.moe;
  moe.num_experts = hf.positive_integer("n_routed_experts", defaults.experts);
  moe.layer_freq = layers;
  moe.topk = defaults.topk > 0 ? hf.positive_integer("num_experts_per_tok", defaults.topk)
                               : hf.positive_integer("num_experts_per_tok");
  moe.ffn_hidden_size = hf.positive_integer("moe_intermediate_size", defaults.ffn);
  moe.shared_expert_size =
      moe.ffn_hidden_size * hf.positive_integer("n_shared_experts", defaults.shared);
  moe.scaling_factor = hf.positive_number("routed_scaling_factor", defaults.scaling);
}

void write_deepseek_experts(const ModelConfig& config, HfConfig& hf) {
  const MoeConfig& moe = config.moe;
  std::int64_t dense = 0;
  while (dense < config.num_layers && !moe.in_layer(dense)) ++dense;
  hf.set("first_k_dense_replace", dense);
  std::vector<std::string> types;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    types.emplace_back(moe.in_layer(layer) ? "sparse" : "dense");
  }
  hf.set("mlp_layer_types", types);
  if (!moe.any()) return;
  hf.set("n_routed_experts", moe.num_experts);
  hf.set("num_experts_per_tok", moe.topk);
  hf.set("moe_intermediate_size", moe.ffn_hidden_size);
  hf.set("n_shared_experts", moe.shared_expert_size / moe.ffn_hidden_size);
  hf.set("routed_scaling_factor", moe.scaling_factor);
  hf.set("n_group", std::max<std::int64_t>(moe.num_groups, 1));
  hf.set("topk_group", std::max<std::int64_t>(moe.group_topk, 1));
}

void set_sigmoid_router(MoeConfig& moe) {
  moe.score_function = RouterScore::kSigmoid;
  moe.expert_bias = true;
  moe.group_score_experts = 2;
}

void read_sigmoid_router(const HfConfig& hf, std::int64_t groups, std::int64_t group_topk,
                         ModelConfig& config) {
  MoeConfig& moe = config.moe;
  set_sigmoid_router(moe);
  // Also with top-1, where Megatron does not normalise.
  moe.norm_topk_prob = moe.norm_single_prob = hf.boolean("norm_topk_prob", true);
  moe.num_groups = hf.positive_integer("n_group", groups);
  moe.group_topk = hf.positive_integer("topk_group", group_topk);
}

void add_deepseek_experts(std::vector<WeightRule>& rules) {
  const std::string mlp = "decoder.layers.{}.mlp.", their_mlp = "model.layers.{}.mlp.";
  const std::string shared = their_mlp + "shared_experts.";
  // Must precede the rule of the router, whose name is a prefix.
  rules.insert(rules.begin(),
               {mlp + "router.expert_bias", {their_mlp + "gate.e_score_correction_bias"}});
  rules.push_back({mlp + "shared_experts.linear_fc1",
                   {shared + "gate_proj", shared + "up_proj"},
                   WeightKind::kGateUpRows});
  rules.push_back({mlp + "shared_experts.linear_fc2", {shared + "down_proj"}});
}

void read_indexer(const HfConfig& hf, std::int64_t heads, ModelConfig& config) {
  IndexerConfig& indexer = config.indexer;
  indexer.topk = hf.positive_integer("index_topk", 2048);
  indexer.heads = hf.positive_integer("index_n_heads", heads);
  indexer.head_size = hf.positive_integer("index_head_dim", 128);
  if (!hf.has("layer_types")) return;
  for (const std::string& type : hf.texts("layer_types")) {
    if (type != "indexed_attention") {
      hf.reject("layer_types", "only indexed_attention is supported");
    }
  }
}

void write_indexer(const ModelConfig& config, HfConfig& hf) {
  hf.set("index_topk", config.indexer.topk);
  hf.set("index_n_heads", config.indexer.heads);
  hf.set("index_head_dim", config.indexer.head_size);
}

void add_indexer_weights(std::vector<WeightRule>& rules) {
  for (const char* part : {"wq_b", "wk", "k_norm", "weights_proj"}) {
    set_sources(rules, concat("self_attention.indexer.", part),
                {concat("self_attn.indexer.", part)});
  }
}

void add_mtp_weights(std::vector<WeightRule>& rules) {
  std::vector<WeightRule> more;
  const std::string layer = "decoder.layers.{}.", theirs = "model.layers.{}.";
  const std::string depth = "mtp.layers.{}.", appended = "model.layers.{+}.";
  for (WeightRule rule : rules) {
    if (!rule.name.starts_with(layer)) continue;
    rule.name = depth + "transformer_layer." + rule.name.substr(layer.size());
    for (std::string& source : rule.sources) source = appended + source.substr(theirs.size());
    if (!rule.other_source.empty()) {
      rule.other_source = appended + rule.other_source.substr(theirs.size());
    }
    more.push_back(std::move(rule));
  }
  more.push_back({depth + "enorm", {appended + "enorm"}});
  more.push_back({depth + "hnorm", {appended + "hnorm"}});
  more.push_back({depth + "eh_proj", {appended + "eh_proj"}});
  more.push_back({depth + "final_layernorm", {appended + "shared_head.norm"}});
  rules.insert(rules.end(), more.begin(), more.end());
}

std::vector<std::string> mtp_ignored() {
  std::vector<std::string> endings = llama_ignored();
  endings.push_back(".embed_tokens.weight");
  endings.push_back(".shared_head.head.weight");
  return endings;
}

std::vector<WeightRule> latent_weights() {
  std::vector<WeightRule> rules = llama_expert_weights();
  const std::string ours = "decoder.layers.{}.self_attention.";
  const std::string theirs = "model.layers.{}.self_attn.";
  std::erase_if(rules, [&](const WeightRule& rule) { return rule.name.starts_with(ours); });
  const std::vector<WeightRule> attention = {
      {ours + "linear_q_proj", {theirs + "q_proj"}},
      {ours + "linear_q_down_proj", {theirs + "q_a_proj"}},
      {ours + "q_layernorm", {theirs + "q_a_layernorm"}},
      {ours + "linear_q_up_proj", {theirs + "q_b_proj"}},
      {ours + "linear_kv_down_proj", {theirs + "kv_a_proj_with_mqa"}},
      {ours + "kv_layernorm", {theirs + "kv_a_layernorm"}},
      {ours + "linear_kv_up_proj", {theirs + "kv_b_proj"}},
      {ours + "linear_proj", {theirs + "o_proj"}},
  };
  rules.insert(rules.end(), attention.begin(), attention.end());
  add_deepseek_experts(rules);
  return rules;
}

}  // namespace bev
