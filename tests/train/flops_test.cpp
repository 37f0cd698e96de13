#include "train/flops.h"

#include <gtest/gtest.h>

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

TEST(Flops, MatchesHandCount) {
  double mlp = 6 * 4 * 8 * 2 * 32, projections = 6 * 4 * (8 * 24 + 64), core = 6 * 16 * 8,
         logits = 6 * 4 * 8 * 128;
  EXPECT_EQ(flops_per_iteration(tiny(), unpacked_tokens(1, 4)), mlp + projections + core + logits);
  EXPECT_EQ(flops_per_iteration(tiny(), unpacked_tokens(1, 4)), 43776);
}

TEST(Flops, PackingOnlyChangesCoreAttention) {
  FlopSizes sizes = tiny();
  sizes.dense_layers = 3;
  FlopTokens whole = unpacked_tokens(2, 8);  // 2 * 8^2
  FlopTokens packed{16, 5 * 5 + 3 * 3 + 8 * 8};
  EXPECT_EQ(flops_per_iteration(sizes, whole) - flops_per_iteration(sizes, packed),
            6.0 * 3 * 8 * (128 - 98));
}

TEST(Flops, CountsGqaGatesAndExperts) {
  FlopSizes sizes = tiny();
  FlopTokens batch = unpacked_tokens(1, 4);
  double base = flops_per_iteration(sizes, batch);
  sizes.kv_heads = 1;
  EXPECT_EQ(base - flops_per_iteration(sizes, batch), 6 * 4 * 8 * 2 * 4);
  sizes = tiny();
  sizes.gated = true;
  EXPECT_EQ(flops_per_iteration(sizes, batch) - base, 6 * 4 * 8 * 32);
  sizes = tiny();
  sizes.output_gate = true;
  EXPECT_EQ(flops_per_iteration(sizes, batch) - base, 6 * 4 * 8 * 8);
  sizes = tiny();
  sizes.dense_layers = 0;
  sizes.moe_layers = 1;
  sizes.moe_ffn = 10;
  sizes.moe_topk = 3;
  sizes.shared_ffn = 2;  // 10 * 3 + 2: as much as the dense MLP
  EXPECT_EQ(flops_per_iteration(sizes, batch), base);
  sizes = tiny();
  sizes.mtp_layers = 1;
  EXPECT_EQ(flops_per_iteration(sizes, batch) - base, 6 * 4 * (3 * 8 + 2 * 64) + 6 * 4 * 8 * 128);
}

TEST(Flops, Gpt2IsAboutSixTimesParametersAndAttention) {
  FlopSizes gpt2{.hidden = 768,
                 .heads = 12,
                 .kv_heads = 12,
                 .head_size = 64,
                 .vocab = 50304,
                 .dense_layers = 12,
                 .ffn = 3072};
  double weights = 12 * 12 * 768.0 * 768 + 768.0 * 50304;
  EXPECT_EQ(flops_per_iteration(gpt2, unpacked_tokens(4, 1024)),
            6 * weights * 4096 + 6.0 * 4 * 1024 * 1024 * 768 * 12);
  EXPECT_DOUBLE_EQ(tflops_per_device(8e12, 2.0, 4), 1.0);
}

}  // namespace
}  // namespace bev
