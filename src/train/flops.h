// Floating-point operations of one training iteration, forward and backward (3 times forward): all
// products of the model, or as Megatron counts them, with causal attention by half. Recomputation
// and small ops are not counted.
#pragma once

#include <cstdint>

#include "models/config.h"

namespace bev {

// Pairs of a query and a key that it sees in a sequence.
double visible_pairs(std::int64_t length, const AttentionRule& rule);

// Counts sequences of so many tokens each: layers as their descriptions say, feed-forwards and
// routers, the output layer, depths of multi-token prediction.
double model_flops(const ModelConfig& model, std::int64_t sequences, std::int64_t length);

// What Megatron's count needs.
struct FlopSizes {
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;     // kv_channels
  std::int64_t vocab = 0;         // padded
  std::int64_t dense_layers = 0;  // with an MLP; MTP layers of that kind included
  std::int64_t ffn = 0;
  bool gated = false;           // act(gate) * up
  bool output_gate = false;     // on attention
  std::int64_t moe_layers = 0;  // with experts; MTP layers of that kind included
  std::int64_t moe_ffn = 0;     // of one expert
  std::int64_t moe_topk = 0;
  std::int64_t shared_ffn = 0;  // of all shared experts
  std::int64_t mtp_layers = 0;
  bool latent_attention = false;  // the following are of it
  std::int64_t q_latent = 0;      // 0: queries come straight from the input
  std::int64_t kv_latent = 0;
  std::int64_t rope_size = 0;    // of a q or k head; head_size has it too
  std::int64_t v_head_size = 0;  // of a v head
};

FlopSizes flop_sizes(const ModelConfig& model);

// What attention and the rest see of a global batch.
struct FlopTokens {
  std::int64_t tokens = 0;
  double sum_of_squares = 0.0;  // of the lengths of the sequences or packed documents
};
FlopTokens unpacked_tokens(std::int64_t global_batch_size, std::int64_t seq_length);

double megatron_flops(const FlopSizes& sizes, const FlopTokens& batch);

// Megatron's TFLOP/s/GPU.
double tflops_per_device(double flops, double seconds, std::int64_t world_size);

}  // namespace bev
