// FLOPs of one training iteration, forward and backward (3 times forward): all GEMMs of the model,
// or by Megatron's formula, which halves causal attention. Recompute and small ops are not counted.
#pragma once

#include <cstdint>

#include "models/config.h"

namespace bev {

// Pairs of a query and a key that it sees in a sequence.
double visible_pairs(std::int64_t length, const AttentionRule& rule);

// FLOPs of `sequences` sequences of `length` tokens: layers by their descriptions, feed-forwards
// and routers, the output layer, MTP modules.
double model_flops(const ModelConfig& model, std::int64_t sequences, std::int64_t length);

// Inputs of Megatron's formula.
struct FlopSizes {
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;     // kv_channels
  std::int64_t vocab = 0;         // padded
  std::int64_t dense_layers = 0;  // with an MLP; MTP layers of that kind included
  std::int64_t ffn = 0;
  bool gated = false;           // SwiGLU and the like: act(gate) * up
  bool output_gate = false;     // on attention
  std::int64_t moe_layers = 0;  // with experts; MTP layers of that kind included
  std::int64_t moe_ffn = 0;     // of one expert
  std::int64_t moe_topk = 0;
  std::int64_t shared_ffn = 0;  // of all shared experts
  std::int64_t mtp_layers = 0;
  std::int64_t attention_layers = -1;  // -1: as many as with an MLP or experts
  std::int64_t mamba_layers = 0;
  std::int64_t mamba_heads = 0, mamba_groups = 0, mamba_state = 0;
  std::int64_t delta_layers = 0;  // of the gated delta rule
  std::int64_t delta_key_columns = 0, delta_value_heads = 0, delta_value_size = 0, delta_conv = 0;
  bool latent_attention = false;  // MLA; the fields below apply to it
  std::int64_t q_latent = 0;      // 0: no latent of the queries
  std::int64_t kv_latent = 0;
  std::int64_t rope_size = 0;    // per q or k head; included in head_size
  std::int64_t v_head_size = 0;  // per v head
};

FlopSizes flop_sizes(const ModelConfig& model);

// Token counts of a global batch for attention and everything else.
struct FlopTokens {
  std::int64_t tokens = 0;
  double sum_of_squares = 0.0;  // of the lengths of the sequences or packed documents
};
FlopTokens unpacked_tokens(std::int64_t global_batch_size, std::int64_t seq_length);

double megatron_flops(const FlopSizes& sizes, const FlopTokens& batch);

// Megatron's TFLOP/s/GPU.
double tflops_per_device(double flops, double seconds, std::int64_t world_size);

}  // namespace bev
