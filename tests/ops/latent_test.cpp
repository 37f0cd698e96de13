#include "ops/attention/latent.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/gemm.h"
#include "tests/ops/decode_steps.h"
#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

constexpr std::int64_t kTokens = 6;
const LatentSpec kSpec{.heads = 3, .latent_size = 7, .nope_size = 4, .rope_size = 2, .v_size = 5};

OpCase split_case(bool only_key) {
  return {concat("split, ", only_key ? "the key" : "both", " used"),
          {{{kTokens, 9}}},
          {},
          [only_key](Bench& bench, const std::vector<Var>& in) {
            LatentParts parts = split_latent(bench.ctx, in[0], kSpec);
            OpOutputs out{{parts.rope_key}};
            if (!only_key) out.vars.push_back(parts.latent);
            return out;
          }};
}

OpCase join_case(std::int64_t tokens = kTokens, const LatentSpec& spec = kSpec) {
  return {concat("join ", tokens, " tokens, ", spec.heads, " heads of ", spec.nope_size),
          {{{tokens, spec.heads * spec.qk_size()}, PlaceState::kShard1},
           {{tokens, spec.heads * (spec.nope_size + spec.v_size)}, PlaceState::kShard1},
           {{tokens, spec.rope_size}, PlaceState::kCopied}},
          {},
          [spec](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{join_latent_heads(bench.ctx, in[0], in[1], in[2], spec)}};
          }};
}

// Whole vectors of a kernel, and sizes that none divides.
const OpRows kLatentRows(
    "LatentAttention",
    {split_case(false), split_case(true), join_case(),
     join_case(5, {.heads = 16, .nope_size = 128, .rope_size = 64, .v_size = 128}),
     join_case(70, {.heads = 3, .nope_size = 10, .rope_size = 6, .v_size = 14}),
     join_case(300, {.heads = 1, .nope_size = 5, .rope_size = 2, .v_size = 3})});

TEST(LatentAttention, JoinSharesTheRotatedKey) {
  OpCase test = join_case();
  OpValues values = values_for(test);
  const std::vector<double>&q = values.inputs[0], &kv = values.inputs[1], &key = values.inputs[2];
  std::vector<double> expected;
  for (std::size_t t = 0; t < kTokens; ++t) {
    auto add = [&](const std::vector<double>& from, std::size_t begin, std::size_t count) {
      auto at = from.begin() + static_cast<std::ptrdiff_t>(begin);
      expected.insert(expected.end(), at, at + static_cast<std::ptrdiff_t>(count));
    };
    add(q, 18 * t, 18);
    for (std::size_t head = 0; head < 3; ++head) {
      add(kv, 27 * t + 9 * head, 4);
      add(key, 2 * t, 2);
    }
    for (std::size_t head = 0; head < 3; ++head) add(kv, 27 * t + 9 * head + 4, 5);
  }
  EXPECT_EQ(run_op(test, values, {}).outputs[0], expected);
}

// MLA over cached latents (absorbed form) and over up-projected keys and values agree.
TEST(LatentAttention, AbsorbedFormContinuesASequence) {
  Bench bench(Dtype::kF64);
  Context& ctx = bench.ctx;
  Param& up = bench.param("kv_up", {27, 7}, {Axis::kTp, 0, {}}, case_numbers(27 * 7, 1, 0.5));
  Param& sinks = bench.param("sinks", {3}, {Axis::kTp, 0, {}}, {0.3, -0.4, 1.5});
  AttentionSpec spec;
  spec.q_heads = spec.kv_heads = 3;
  spec.head_size = kSpec.qk_size(), spec.v_head_size = kSpec.v_size;
  spec.rule.scale = 0.6, spec.rule.window = 3;
  spec.rule.sink = SoftmaxSink::kLearned;
  spec.sinks.logits = &sinks;
  const std::vector<double> q = case_numbers(kTokens * 18, 2),
                            latent = case_numbers(kTokens * 7, 3);
  const std::vector<double> key = case_numbers(kTokens * 2, 4);
  auto rows = [&](const std::vector<double>& from, std::int64_t begin, std::int64_t count,
                  std::int64_t width, PlaceState state) {
    auto at = from.begin() + begin * width;
    return Var{bench.tensor({count, width}, {at, at + count * width}),
               Placement().with(Axis::kTp, state), -1, nullptr};
  };
  auto parts = [&](std::int64_t begin, std::int64_t count) {
    return LatentRows{rows(q, begin, count, 18, PlaceState::kShard1),
                      rows(latent, begin, count, 7, PlaceState::kReplicated),
                      rows(key, begin, count, 2, PlaceState::kCopied)};
  };

  LatentRows all = parts(0, kTokens);
  Var kv{bench.tensor({kTokens, 27}, std::vector<double>(kTokens * 27)), all.q.placement, -1,
         nullptr};
  ctx.kernels.gemm.gemm(
      ctx.stream,
      {.a = all.latent.tensor, .b = ctx.weights.use(up).view, .c = kv.tensor, .transpose_b = true});
  std::vector<AttentionRun> runs = {{0, kTokens, 0, kTokens}};
  Tensor none = bench.integers(std::vector<std::int32_t>(kTokens));
  std::vector<double> expected =
      values_of(attention(ctx, join_latent_heads(ctx, all.q, kv, all.rope_key, kSpec),
                          {runs, none, none}, spec)
                    .tensor);

  Tensor cache = bench.tensor({kCacheRows, 9}, std::vector<double>(kCacheRows * 9, std::nan("")));
  std::vector<double> got;
  std::int32_t row = 0;
  for (std::int32_t count : {3, 1, 2}) {
    DecodeStep step = decode_step(ctx, row, count, count == 1);
    LatentRows now = parts(row, count);
    keep_latents(ctx, now, cache, step, kSpec);
    std::vector<double> part =
        values_of(cached_latent_attention(ctx, now, up, cache, step, spec, kSpec).tensor);
    got.insert(got.end(), part.begin(), part.end());
    row += count;
  }
  EXPECT_LT(relative_error(got, expected), 1e-13);
}

}  // namespace
}  // namespace bev::test
