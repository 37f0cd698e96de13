#include "plan/flops.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace bev {
namespace {

FlopSizes tiny() {
  return {.hidden = 8,
          .heads = 2,
          .kv_heads = 2,
          .head_size = 4,
          .vocab = 128,
          .dense_layers = 1,
          .ffn = 32};
}

TEST(MegatronFlops, MatchesHandCount) {
  double mlp = 6 * 4 * 8 * 2 * 32, projections = 6 * 4 * (8 * 24 + 64), core = 6 * 16 * 8,
         logits = 6 * 4 * 8 * 128;
  EXPECT_EQ(megatron_flops(tiny(), unpacked_tokens(1, 4)), mlp + projections + core + logits);
  EXPECT_EQ(megatron_flops(tiny(), unpacked_tokens(1, 4)), 43776);
}

// Megatron's own number for this pattern: its Mamba layers are twice as wide as the model.
TEST(MegatronFlops, CountsThePartsOfHybridModels) {
  ModelConfig model;
  model.num_layers = 3;
  model.hidden_size = 256;
  model.num_attention_heads = 4;
  model.ffn_hidden_size = 1024;
  model.vocab_size = 128;
  model.hybrid_layer_pattern = "M*-";
  EXPECT_EQ(megatron_flops(flop_sizes(model), unpacked_tokens(2, 4)), 94519296);
}

TEST(MegatronFlops, CountsTheGatedDeltaRule) {
  ModelConfig model;
  model.num_layers = 1;
  model.hidden_size = 8;
  model.num_attention_heads = 2;
  model.ffn_hidden_size = 16;
  model.vocab_size = 128;
  model.hybrid_layer_pattern = "G";
  model.delta = {.conv_kernel = 4,
                 .key_head_dim = 3,
                 .value_head_dim = 5,
                 .num_key_heads = 2,
                 .num_value_heads = 4};
  // q and k 6, v 20 columns: projections, convolution, rule, output; and the logits.
  const double layer = 8 * (2 * 6 + 2 * 20 + 2 * 4) + 4 * (2 * 6 + 20) + 4 * 4 * 5 * 5 + 8 * 20;
  EXPECT_EQ(megatron_flops(flop_sizes(model), unpacked_tokens(1, 4)), 6 * 4 * (layer + 8 * 128));
}

TEST(MegatronFlops, PackingOnlyChangesCoreAttention) {
  FlopSizes sizes = tiny();
  sizes.dense_layers = 3;
  FlopTokens whole = unpacked_tokens(2, 8);  // 2 * 8^2
  FlopTokens packed{16, 5 * 5 + 3 * 3 + 8 * 8};
  EXPECT_EQ(megatron_flops(sizes, whole) - megatron_flops(sizes, packed), 6.0 * 3 * 8 * (128 - 98));
}

TEST(MegatronFlops, CountsGqaGatesAndExperts) {
  FlopSizes sizes = tiny();
  FlopTokens batch = unpacked_tokens(1, 4);
  double base = megatron_flops(sizes, batch);
  sizes.kv_heads = 1;
  EXPECT_EQ(base - megatron_flops(sizes, batch), 6 * 4 * 8 * 2 * 4);
  sizes = tiny();
  sizes.gated = true;
  EXPECT_EQ(megatron_flops(sizes, batch) - base, 6 * 4 * 8 * 32);
  sizes = tiny();
  sizes.output_gate = true;
  EXPECT_EQ(megatron_flops(sizes, batch) - base, 6 * 4 * 8 * 8);
  sizes = tiny();
  sizes.dense_layers = 0;
  sizes.moe_layers = 1;
  sizes.moe_ffn = 10;
  sizes.moe_topk = 3;
  sizes.shared_ffn = 2;  // 10 * 3 + 2: the same as the dense MLP
  EXPECT_EQ(megatron_flops(sizes, batch), base);
  sizes = tiny();
  sizes.mtp_layers = 1;
  EXPECT_EQ(megatron_flops(sizes, batch) - base, 6 * 4 * (3 * 8 + 2 * 64) + 6 * 4 * 8 * 128);
}

TEST(MegatronFlops, Gpt2IsAboutSixTimesParametersAndAttention) {
  FlopSizes gpt2{.hidden = 768,
                 .heads = 12,
                 .kv_heads = 12,
                 .head_size = 64,
                 .vocab = 50304,
                 .dense_layers = 12,
                 .ffn = 3072};
  double weights = 12 * 12 * 768.0 * 768 + 768.0 * 50304;
  EXPECT_EQ(megatron_flops(gpt2, unpacked_tokens(4, 1024)),
            6 * weights * 4096 + 6.0 * 4 * 1024 * 1024 * 768 * 12);
  EXPECT_DOUBLE_EQ(tflops_per_device(8e12, 2.0, 4), 1.0);
}

TEST(Flops, PairsAreThoseThatAQuerySees) {
  for (bool causal : {true, false}) {
    for (std::int64_t window : {-1, 0, 1, 2, 4, 5, 9}) {
      double pairs = 0;
      for (std::int64_t query = 0; query < 5; ++query) {
        for (std::int64_t key = 0; key < 5; ++key) {
          bool near = window < 0 || std::abs(query - key) <= window;
          if (near && (!causal || key <= query)) ++pairs;
        }
      }
      EXPECT_EQ(visible_pairs(5, {.window = window, .causal = causal}), pairs)
          << window << " " << causal;
    }
  }
  EXPECT_EQ(visible_pairs(1, {}), 1);
}

ModelConfig small_model() {
  ModelConfig model;
  model.num_layers = 2;
  model.hidden_size = 8;
  model.num_attention_heads = 4;
  model.num_query_groups = 2;
  model.kv_channels = 3;
  model.ffn_hidden_size = 20;
  model.vocab_size = 50;
  return model;
}

// Sequences of 6 tokens. Projections have 8 x (12 + 2 x 6) + 12 x 8 = 288 weights, a pair 4 heads x
// (3 + 3) multiply-adds.
TEST(Flops, CountsWindowsExactly) {
  ModelConfig model = small_model();
  double layer = 288 + 2 * 8 * 20, head = 8 * 50, pair = 24;
  double full = 21, window = 1 + 2 + 3 + 3 + 3 + 3;
  EXPECT_EQ(model_flops(model, 1, 6), 3 * 2 * (6 * (2 * layer + head) + 2 * full * pair));
  model.window_size = 2;
  model.window_layers = {1, 0};
  model.gated = true;
  layer += 8 * 20;
  EXPECT_EQ(model_flops(model, 5, 6),
            5 * 3 * 2 * (6 * (2 * layer + head) + (full + window) * pair));
}

// Queries 8 -> 5 -> 2 x (4 + 2); keys and values 8 -> 3 + 2, 3 -> 2 x (4 + 3); output 2 x 3 -> 8.
TEST(Flops, CountsLatentAttention) {
  ModelConfig model = small_model();
  model.multi_latent_attention = true;
  model.num_attention_heads = model.num_query_groups = 2;
  model.q_lora_rank = 5;
  model.kv_lora_rank = 3;
  model.qk_head_dim = 4;
  model.qk_pos_emb_head_dim = 2;
  model.v_head_dim = 3;
  double mixer = 8 * 5 + 5 * 12 + 8 * 5 + 3 * 14 + 6 * 8, pair = 2 * (6 + 3);
  EXPECT_EQ(model_flops(model, 1, 6),
            3 * 2 * (6 * (2 * (mixer + 2 * 8 * 20) + 8 * 50) + 2 * 21 * pair));
  model.q_lora_rank = 0;
  mixer += 8 * 12 - (8 * 5 + 5 * 12);
  EXPECT_EQ(model_flops(model, 1, 6),
            3 * 2 * (6 * (2 * (mixer + 2 * 8 * 20) + 8 * 50) + 2 * 21 * pair));
}

// Layer 0 is dense. Layer 1 has 2 of 7 experts of 5 and a gated shared expert of 11, and so has the
// MTP module, which projects 2 x 8 to 8 and uses the head once more.
TEST(Flops, CountsExpertsAndDepths) {
  ModelConfig model = small_model();
  model.gated = true;
  model.moe.num_experts = 7;
  model.moe.layer_freq = {0, 1};
  model.moe.ffn_hidden_size = 5;
  model.moe.shared_expert_size = 11;
  model.moe.shared_expert_gate = true;
  model.mtp_num_layers = 1;
  double dense = 3 * 8 * 20, experts = 3 * 8 * (2 * 5 + 11) + 8 * (7 + 1);
  double weights = 3 * 288 + dense + 2 * experts + 16 * 8 + 2 * 8 * 50;
  EXPECT_EQ(model_flops(model, 3, 6), 3 * 3 * 2 * (6 * weights + 3 * 21 * 24));
  FlopSizes sizes = flop_sizes(model);
  EXPECT_EQ(sizes.dense_layers, 1);
  EXPECT_EQ(sizes.moe_layers, 2);
}

}  // namespace
}  // namespace bev
