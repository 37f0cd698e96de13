#include "train/flops.h"

#include <algorithm>

namespace bev {

FlopTokens unpacked_tokens(std::int64_t global_batch_size, std::int64_t seq_length) {
  auto tokens = global_batch_size * seq_length;
  return {tokens, static_cast<double>(tokens) * static_cast<double>(seq_length)};
}

namespace {

// Weights of an attention layer's projections.
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

}  // namespace

double flops_per_iteration(const FlopSizes& sizes, const FlopTokens& batch) {
  // A product multiplies and adds (2), once forward and twice backward (3).
  constexpr double kPerWeight = 6.0;
  auto h = static_cast<double>(sizes.hidden);
  auto q = static_cast<double>(sizes.heads * sizes.head_size);
  auto layers = static_cast<double>(sizes.dense_layers + sizes.moe_layers);
  auto mtp = static_cast<double>(sizes.mtp_layers);

  auto ffn =
      static_cast<double>(sizes.ffn * sizes.dense_layers +
                          (sizes.moe_ffn * sizes.moe_topk + sizes.shared_ffn) * sizes.moe_layers);
  double mlp = h * (sizes.gated ? 3.0 : 2.0) * ffn;
  double projections = layers * projection_weights(sizes);
  double mtp_glue = mtp * (3.0 * h + 2.0 * h * h);
  double logits = h * static_cast<double>(sizes.vocab) * (mtp + 1.0);
  // Scores and weighted values, each by half.
  double width =
      sizes.latent_attention ? (q + static_cast<double>(sizes.heads * sizes.v_head_size)) / 2.0 : q;
  double core_attention = batch.sum_of_squares * width * layers;
  return kPerWeight * (static_cast<double>(batch.tokens) * (mlp + projections + mtp_glue + logits) +
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
  for (std::int64_t layer = 0; layer < model.num_layers + model.mtp_num_layers; ++layer) {
    ++(model.has_experts(layer) ? sizes.moe_layers : sizes.dense_layers);
  }
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
