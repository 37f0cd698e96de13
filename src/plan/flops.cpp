#include "plan/flops.h"

#include <algorithm>

#include "models/model.h"

namespace bev {

double visible_pairs(std::int64_t length, const AttentionRule& rule) {
  auto tokens = static_cast<double>(length);
  // Keys that the last query sees; each of the first queries sees one more than the one before it.
  double most = rule.window < 0 ? tokens : std::min(static_cast<double>(rule.window) + 1, tokens);
  double before = most * (most + 1) / 2 + (tokens - most) * most;
  return rule.causal ? before : 2 * before - tokens;
}

namespace {

// One multiply-add per weight and token.
double gemm_flops(std::int64_t rows, std::int64_t columns) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(columns);
}

// Forward FLOPs per token.
double mlp_flops(const ModelConfig& model, std::int64_t inner) {
  return gemm_flops(model.hidden_size, inner) * (model.gated ? 3 : 2);
}

double feed_forward_flops(const ModelConfig& model, FeedForwardKind kind) {
  if (kind == FeedForwardKind::kNone) return 0;
  if (kind == FeedForwardKind::kDense) return mlp_flops(model, model.ffn_size());
  const MoeConfig& moe = model.moe;
  std::int64_t routed = moe.num_experts + (moe.shared_expert_gate ? 1 : 0);
  return static_cast<double>(moe.topk) * mlp_flops(model, model.expert_ffn_size()) +
         mlp_flops(model, moe.shared_expert_size) + gemm_flops(model.hidden_size, routed);
}

// Forward FLOPs of a whole sequence.
double layer_flops(const ModelConfig& model, const LayerSpec& layer, std::int64_t length) {
  MixerFlops mixer = layer.mixer != nullptr ? layer.mixer->flops(model, layer) : MixerFlops{};
  double each = mixer.per_token + feed_forward_flops(model, layer.feed_forward);
  return each * static_cast<double>(length) +
         mixer.per_pair * visible_pairs(length, layer.attention);
}

// Layer description of layer or MTP module `number`: MTP modules are like the last layer.
const LayerSpec& spec_of(const std::vector<LayerSpec>& layers, std::int64_t number) {
  return layers[static_cast<std::size_t>(std::min(number, std::ssize(layers) - 1))];
}

}  // namespace

double model_flops(const ModelConfig& model, std::int64_t sequences, std::int64_t length) {
  std::vector<LayerSpec> layers = layer_specs(model);
  double head = gemm_flops(model.hidden_size, model.vocab_size);
  double join =
      gemm_flops(2 * model.hidden_size, model.hidden_size);  // projection of an MTP module
  double forward = head * static_cast<double>(length);
  for (std::int64_t i = 0; i < std::ssize(layers) + model.mtp_num_layers; ++i) {
    forward += layer_flops(model, spec_of(layers, i), length);
    if (i >= std::ssize(layers)) forward += (join + head) * static_cast<double>(length);
  }
  return 3 * forward * static_cast<double>(sequences);
}

FlopTokens unpacked_tokens(std::int64_t global_batch_size, std::int64_t seq_length) {
  auto tokens = global_batch_size * seq_length;
  return {tokens, static_cast<double>(tokens) * static_cast<double>(seq_length)};
}

namespace {

// Weights of the projections of an attention layer.
double projection_weights(const FlopSizes& sizes) {
  auto h = static_cast<double>(sizes.hidden);
  auto q = static_cast<double>(sizes.heads * sizes.head_size);
  if (!sizes.latent_attention) {
    auto kv = static_cast<double>(sizes.kv_heads * sizes.head_size);
    return h * (q + 2.0 * kv + (sizes.output_gate ? q : 0.0)) + q * h;
  }
  auto q_latent = static_cast<double>(sizes.q_latent),
       kv_latent = static_cast<double>(sizes.kv_latent);
  auto rope = static_cast<double>(sizes.rope_size);
  auto v = static_cast<double>(sizes.heads * sizes.v_head_size);
  double nope = q - static_cast<double>(sizes.heads) * rope;
  double queries = sizes.q_latent > 0 ? q_latent * (h + q + 1.0) : h * q;
  return queries + kv_latent * (h + nope + v + 1.0) + h * rope + v * h;
}

// Weights of a Mamba-2 layer, and its scan as as many; the inner width is always twice the hidden
// size.
double mamba_weights(const FlopSizes& sizes) {
  auto h = static_cast<double>(sizes.hidden);
  auto state = static_cast<double>(sizes.mamba_state);
  double columns = 4.0 * h + 2.0 * static_cast<double>(sizes.mamba_groups) * state +
                   static_cast<double>(sizes.mamba_heads);
  return h * columns + 7.0 * h * state + 2.0 * h * h;
}

// Weights of a gated delta layer, and its convolution and rule as as many.
double delta_weights(const FlopSizes& sizes) {
  auto h = static_cast<double>(sizes.hidden), keys = static_cast<double>(sizes.delta_key_columns);
  auto heads = static_cast<double>(sizes.delta_value_heads);
  auto size = static_cast<double>(sizes.delta_value_size), values = heads * size;
  return h * (2 * keys + 2 * values + 2 * heads) +
         static_cast<double>(sizes.delta_conv) * (2 * keys + values) + 4 * values * size +
         h * values;
}

}  // namespace

double megatron_flops(const FlopSizes& sizes, const FlopTokens& batch) {
  // A GEMM has 2 FLOPs per multiply-add, once in the forward and twice in the backward (3).
  constexpr double kPerWeight = 6.0;
  auto h = static_cast<double>(sizes.hidden);
  auto q = static_cast<double>(sizes.heads * sizes.head_size);
  auto layers = static_cast<double>(
      sizes.attention_layers >= 0 ? sizes.attention_layers : sizes.dense_layers + sizes.moe_layers);
  auto mtp = static_cast<double>(sizes.mtp_layers);

  auto ffn =
      static_cast<double>(sizes.ffn * sizes.dense_layers +
                          (sizes.moe_ffn * sizes.moe_topk + sizes.shared_ffn) * sizes.moe_layers);
  double mlp = h * (sizes.gated ? 3.0 : 2.0) * ffn;
  double projections = layers * projection_weights(sizes);
  double mtp_glue = mtp * (3.0 * h + 2.0 * h * h);
  double logits = h * static_cast<double>(sizes.vocab) * (mtp + 1.0);
  // Scores and weighted values, each halved by the causal mask.
  double width =
      sizes.latent_attention ? (q + static_cast<double>(sizes.heads * sizes.v_head_size)) / 2.0 : q;
  double core_attention = batch.sum_of_squares * width * layers;
  double recurrent = static_cast<double>(sizes.mamba_layers) * mamba_weights(sizes) +
                     static_cast<double>(sizes.delta_layers) * delta_weights(sizes);
  return kPerWeight *
         (static_cast<double>(batch.tokens) * (mlp + projections + recurrent + mtp_glue + logits) +
          core_attention);
}

double tflops_per_device(double flops, double seconds, std::int64_t world_size) {
  return flops / (seconds * 1e12 * static_cast<double>(world_size));
}

FlopSizes flop_sizes(const ModelConfig& model) {
  FlopSizes sizes;
  sizes.hidden = model.hidden_size;
  sizes.heads = model.num_attention_heads;
  sizes.kv_heads = model.kv_heads();
  sizes.head_size = model.head_size();
  sizes.vocab = model.vocab_size;
  std::vector<LayerSpec> layers = layer_specs(model);
  std::int64_t attention = 0;
  for (std::int64_t i = 0; i < std::ssize(layers) + model.mtp_num_layers; ++i) {
    const LayerSpec& layer = spec_of(layers, i);
    if (layer.feed_forward == FeedForwardKind::kExperts) ++sizes.moe_layers;
    if (layer.feed_forward == FeedForwardKind::kDense) ++sizes.dense_layers;
    const bool both = layer.mixer == &kParallelMambaMixer;
    if (layer.mixer == &kMambaMixer || both) ++sizes.mamba_layers;
    if (layer.mixer == &kGatedDeltaMixer) ++sizes.delta_layers;
    if (layer.mixer != nullptr && (both || !layer.mixer->recurrent)) ++attention;
  }
  if (!model.hybrid_layer_pattern.empty()) sizes.attention_layers = attention;
  sizes.mamba_heads = model.mamba.heads(model.hidden_size);
  sizes.mamba_groups = model.mamba.num_groups;
  sizes.mamba_state = model.mamba.state_dim;
  sizes.output_gate = model.attention_output_gate;
  sizes.delta_key_columns = model.delta.key_columns();
  sizes.delta_value_heads = model.delta.num_value_heads;
  sizes.delta_value_size = model.delta.value_head_dim;
  sizes.delta_conv = model.delta.conv_kernel;
  sizes.mtp_layers = model.mtp_num_layers;
  sizes.moe_ffn = model.expert_ffn_size();
  sizes.moe_topk = model.moe.topk;
  sizes.shared_ffn = model.moe.shared_expert_size;
  sizes.ffn = model.ffn_size();
  sizes.gated = model.gated;
  sizes.latent_attention = model.multi_latent_attention;
  sizes.q_latent = model.q_lora_rank;
  sizes.kv_latent = model.kv_lora_rank;
  sizes.rope_size = model.qk_pos_emb_head_dim;
  sizes.v_head_size = model.v_head_size();
  return sizes;
}

}  // namespace bev
