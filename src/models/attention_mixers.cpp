// Attention (MHA, GQA, MQA) and multi-head latent attention (MLA) as mixers of a layer.
#include <algorithm>

#include "models/layer.h"

namespace bev {

namespace {

LatentOptions latent_options(const ModelConfig& config) {
  LatentOptions o;
  o.latent_size = config.kv_lora_rank;
  o.q_latent_size = config.q_lora_rank;
  o.nope_size = config.qk_head_dim;
  o.rope_size = config.qk_pos_emb_head_dim;
  o.norms = config.qk_layernorm;
  o.norm = norm_options(config);
  if (config.latent_norm_epsilon > 0) o.norm.epsilon = config.latent_norm_epsilon;
  return o;
}

AttentionOptions attention_options(const ModelConfig& config, const LayerSpec& spec,
                                   std::int64_t number, const BuildOptions& build) {
  AttentionOptions o;
  o.layer = number;
  o.hidden_size = config.hidden_size;
  o.heads = config.num_attention_heads;
  o.kv_heads = config.kv_heads();
  o.head_size = config.head_size();
  o.v_head_size = config.v_head_size();
  o.qkv_bias = config.has_qkv_bias();
  o.proj_bias = config.has_proj_bias();
  o.qk_norm = config.qk_layernorm;
  o.qk_norm_kind = config.qk_norm_kind;
  o.scaled_queries = spec.scaled_queries;
  o.output_gate = config.attention_output_gate;
  o.norm = norm_options(config);
  o.norm.center = false;  // the per-head norm is always an RMSNorm
  o.rule = spec.attention;
  o.rope = spec.rope;
  o.rotary_interleaved = config.rotary_interleaved;
  o.init_std = config.init_method_std;
  o.proj_init_std = output_std(config);
  o.recompute_core = build.recompute.core_attention;
  auto place = static_cast<std::size_t>(number);
  o.context = build.context[std::min(place, build.context.size() - 1)];
  o.tensor_parallel = build.tensor_parallel;
  return o;
}

AttentionOptions latent_attention_options(const ModelConfig& config, const LayerSpec& spec,
                                          std::int64_t number, const BuildOptions& build) {
  AttentionOptions o = attention_options(config, spec, number, build);
  o.latent = latent_options(config);
  o.latent.recompute_up = build.recompute.latent_up;
  if (config.has_indexer(number)) {
    o.latent.indexer_heads = config.indexer.heads;
    o.latent.indexer_size = config.indexer.head_size;
  }
  return o;
}

// One multiply-add per weight and token.
double gemm_flops(std::int64_t weights) { return 2.0 * static_cast<double>(weights); }

// Scores and weighted values per query-key pair.
double pair_flops(const ModelConfig& config) {
  return gemm_flops(config.num_attention_heads * (config.head_size() + config.v_head_size()));
}

MixerFlops attention_flops(const ModelConfig& config, const LayerSpec&) {
  std::int64_t hidden = config.hidden_size, q = config.num_attention_heads * config.head_size();
  std::int64_t kv = config.kv_heads() * config.head_size();
  std::int64_t gate = config.attention_output_gate ? q : 0;
  return {gemm_flops(hidden * (q + gate + 2 * kv) + q * hidden), pair_flops(config)};
}

MixerFlops latent_attention_flops(const ModelConfig& config, const LayerSpec&) {
  std::int64_t hidden = config.hidden_size, heads = config.num_attention_heads;
  std::int64_t q = heads * config.head_size(), v = heads * config.v_head_size();
  std::int64_t queries = config.q_lora_rank > 0 ? config.q_lora_rank * (hidden + q) : hidden * q;
  std::int64_t latents = hidden * (config.kv_lora_rank + config.qk_pos_emb_head_dim);
  std::int64_t keys_and_values = config.kv_lora_rank * (heads * config.qk_head_dim + v);
  return {gemm_flops(queries + latents + keys_and_values + v * hidden), pair_flops(config)};
}

}  // namespace

constinit const MixerType kAttentionMixer = {
    .name = "attention",
    .module = "self_attention",
    .make =
        [](const std::string& name, const ModelConfig& config, const LayerSpec& spec,
           std::int64_t number, const BuildOptions& options) {
          return make_attention(name, attention_options(config, spec, number, options));
        },
    .flops = attention_flops};

constinit const MixerType kLatentAttentionMixer = {
    .name = "mla",
    .module = "self_attention",
    .make =
        [](const std::string& name, const ModelConfig& config, const LayerSpec& spec,
           std::int64_t number, const BuildOptions& options) {
          return make_attention(name, latent_attention_options(config, spec, number, options));
        },
    .flops = latent_attention_flops};

}  // namespace bev
