// GLM-5: DeepSeek-V3.2's attention and experts in other sizes, where some layers use the keys that
// an earlier indexer chose. Sequences beyond index_topk tokens are refused (see deepseek_v32.cpp).
#include <algorithm>

#include "models/families/deepseek_like.h"
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"

namespace bev {

namespace {
constexpr LlamaDefaults kDefaults = {.max_positions = 202752, .norm_epsilon = 1e-5};
constexpr DeepseekExperts kExperts = {
    .dense_layers = 3, .experts = 256, .topk = 8, .ffn = 2048, .shared = 1, .scaling = 2.5};
constexpr std::int64_t kIndexerHeads = 32;

// Marks of layers without an indexer of their own.
std::vector<std::int64_t> shared_layers(const HfConfig& hf, std::int64_t layers) {
  std::vector<std::int64_t> marks;
  if (hf.has("indexer_types")) {
    for (const std::string& type : hf.texts("indexer_types")) {
      if (type != "full" && type != "shared") {
        hf.reject("indexer_types", "only full and shared are supported");
      }
      marks.push_back(type == "shared" ? 1 : 0);
    }
    if (static_cast<std::int64_t>(marks.size()) != layers) {
      hf.reject("indexer_types", "it must have an entry for each layer");
    }
    return marks;
  }
  reject_set(hf, "index_topk_pattern", "give indexer_types, one for each layer");
  const std::int64_t step = std::max<std::int64_t>(hf.count("index_topk_freq", 1), 1);
  const std::int64_t offset = hf.count("index_skip_topk_offset", 2);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    marks.push_back(std::max<std::int64_t>(layer - offset + 1, 0) % step == 0 ? 0 : 1);
  }
  return marks;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_llama_like(hf, "glm_moe_dsa", kDefaults);
  read_latent(hf, config);
  read_rope(hf, {}, config);
  config.rotary_interleaved = true;
  reject_set(hf, "mlp_bias", "biases beside experts are not supported");
  read_deepseek_experts(hf, kExperts, config);
  if (config.moe.any()) read_sigmoid_router(hf, 1, 1, config);
  read_indexer(hf, kIndexerHeads, config);
  config.indexer.shared_layers = shared_layers(hf, config.num_layers);
  const auto& shared = config.indexer.shared_layers;
  if (std::ranges::find(shared, 1) == shared.end()) config.indexer.shared_layers.clear();
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, kDefaults, hf);
  write_rope(config, {}, hf);
  write_latent(config, hf);
  write_deepseek_experts(config, hf);
  hf.set("norm_topk_prob", config.moe.norm_topk_prob);
  write_indexer(config, hf);
  std::vector<std::string> types;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    types.emplace_back(config.has_indexer(layer) ? "full" : "shared");
  }
  hf.set("indexer_types", types);
  hf.set("num_nextn_predict_layers", config.mtp_num_layers);
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = latent_weights();
  add_indexer_weights(rules);
  add_mtp_weights(rules);
  return rules;
}

ModelConfig glm5() {
  ModelConfig config = llama_block("glm_moe_dsa");
  config.multi_latent_attention = config.qk_layernorm = config.rotary_interleaved = true;
  config.latent_norm_epsilon = 1e-6;
  config.q_lora_rank = 2048;
  config.kv_lora_rank = 512;
  config.qk_head_dim = 192;
  config.v_head_dim = 256;
  config.qk_pos_emb_head_dim = 64;
  config.rotary_base = 1e6;
  config.indexer.topk = 2048;
  config.indexer.heads = kIndexerHeads;
  MoeConfig& moe = config.moe;
  set_sigmoid_router(moe);
  moe.num_experts = 256;
  moe.topk = 8;
  moe.scaling_factor = 2.5;
  moe.ffn_hidden_size = moe.shared_expert_size = 2048;
  moe.layer_freq = expert_layers(3, 78);
  return with_sizes(config, {78, 6144, 12288, 64, 64, 154880, 202752});
}
}  // namespace

ModelFamily glm_moe_dsa_family() {
  return {.name = "glm_moe_dsa",
          .architecture = "GlmMoeDsaForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = mtp_ignored(),
          .further_layers = "model.layers.{}.",
          .presets = {{"glm-5", glm5()}}};
}

}  // namespace bev
