// --fp32-residual-connection: in bf16, every layout gives one rank's answer within the rounding of
// its linear layers, and the answer is nearer to that of f32.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

TinyRun run_of(const ModelConfig& model, Dtype dtype, bool fp32_residual) {
  TinyRun run;
  run.model = model;
  run.model.fp32_residual_connection = fp32_residual;
  run.dtype = dtype;
  return run;
}

void expect_one_ranks_answer(const ModelConfig& model, const std::vector<std::string>& layouts,
                             double tolerance = 5e-2) {
  const TinyRun single = run_of(model, Dtype::kBf16, true);
  const LayoutAnswer expected = run_tiny(single);
  for (const std::string& layout : layouts) {
    SCOPED_TRACE(layout);
    TinyRun run = single;
    run.parallel = parse_layouts(layout, {}).at(0);
    const LayoutAnswer actual = run_tiny(run);
    EXPECT_NEAR(actual.losses[0], expected.losses[0], 2e-3 * expected.losses[0]);
    // Small gradients are sums of large ones that cancel.
    constexpr double kFloor = 0.2;
    const TensorDifference gradients =
        largest_difference(expected.gradients, actual.gradients, kFloor);
    EXPECT_LT(gradients.value, tolerance) << "gradient of " << gradients.name;
  }
}

TEST(Fp32Residual, GivesOneRanksAnswerUnderEveryKindOfLayout) {
  expect_one_ranks_answer(
      tiny_llama(), {"tp2", "tp2sp", "pp2", "pp4,dp2", "cp2p2p", "dp2zero3", "tp2sp,pp2,dp2zero2"});
}

// Learned positions and dropout; norms after the parts, both, and one of a parallel block; experts.
TEST(Fp32Residual, GoesThroughEveryBlock) {
  ModelConfig post = tiny_llama(), both = tiny_gpt(), shared = tiny_llama();
  post.norm_placement = NormPlacement::kPost;
  both.norm_placement = NormPlacement::kPreAndPost;
  both.hidden_dropout = 0.1;
  shared.parallel_residual = true;
  shared.norm_placement = NormPlacement::kShared;
  for (const ModelConfig& model : {post, both, shared}) {
    expect_one_ranks_answer(model, {"tp2sp,pp2", "cp2p2p,dp2zero3"}, 0.1);
  }
  expect_one_ranks_answer(mixtral_like(), {"dp2,ep2"});
}

// Stages with hidden states of both kinds: before and behind the final norm.
TEST(Fp32Residual, PassesDepthsOfMultiTokenPrediction) {
  ModelConfig model = tiny_llama();
  model.mtp_num_layers = 2;
  expect_one_ranks_answer(model, {"pp2", "tp2sp,pp2", "pp2[Ettttm|mL]", "pp3[Ett|tt|mmL]"});
}

TEST(Fp32Residual, RecomputeDoesNotChangeABit) {
  TinyRun run = run_of(tiny_llama(), Dtype::kBf16, true);
  const LayoutAnswer plain = run_tiny(run);
  for (const char* layout : {"recompute", "selective"}) {
    run.parallel = {};
    run.parallel.recompute_granularity = std::string_view(layout) == "selective"
                                             ? RecomputeGranularity::kSelective
                                             : RecomputeGranularity::kFull;
    run.parallel.recompute_num_layers = 1;
    run.parallel.recompute_modules = {"core_attn", "layernorm", "activation", "mlp"};
    const LayoutAnswer again = run_tiny(run);
    EXPECT_EQ(plain.losses, again.losses) << layout;
    EXPECT_EQ(plain.gradients, again.gradients) << layout;
  }
}

// Over many layers the roundings of a stream in bf16 add up, which is larger than what layers add
// to it. The losses of many batches, with weights that stay.
TEST(Fp32Residual, IsNearerToF32) {
  ModelConfig model = tiny_llama();
  model.num_layers = 16;
  model.embedding_multiplier = 8;
  auto answer_of = [&](Dtype dtype, bool fp32_residual) {
    TinyRun run = run_of(model, dtype, fp32_residual);
    run.lr = 0.0;
    run.steps = 12;
    return run_tiny(run);
  };
  const LayoutAnswer exact = answer_of(Dtype::kF32, false);
  auto distance = [&](bool fp32_residual) {
    const LayoutAnswer answer = answer_of(Dtype::kBf16, fp32_residual);
    double losses = 0, gradients = 0;
    for (std::size_t i = 0; i < exact.losses.size(); ++i) {
      const double difference = answer.losses[i] - exact.losses[i];
      losses += difference * difference;
    }
    for (const auto& [name, values] : exact.gradients) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double difference = answer.gradients.at(name)[i] - values[i];
        gradients += difference * difference;
      }
    }
    return std::pair(losses, gradients);
  };
  const auto plain = distance(false), wide = distance(true);
  EXPECT_LT(wide.first, 0.5 * plain.first);
  EXPECT_LT(wide.second, 0.5 * plain.second);
}

// The stream of a run in f32 or f64 is as wide as the run anyway.
TEST(Fp32Residual, ChangesNothingInF32) {
  EXPECT_EQ(run_tiny(run_of(tiny_gpt(), Dtype::kF32, true)).gradients,
            run_tiny(run_of(tiny_gpt(), Dtype::kF32, false)).gradients);
}

}  // namespace
}  // namespace bev::test
