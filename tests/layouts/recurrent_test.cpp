// Models with Mamba-2 layers give the result of one rank under every kind of layout: gradients of
// the first step to 1e-11, weights after three steps to 1e-9, in f64.
#include <gtest/gtest.h>

#include "tests/support/hybrids.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

// Packed documents, so that states begin anew within a rank's tokens.
StepSamples packed_samples(std::uint64_t seed) {
  StepSamples samples = random_samples(53, 4, 13, seed);
  for (std::size_t i = 0; i < samples.size(); i += 2) samples[i].documents = {5, 1, 7};
  return samples;
}

void expect_one_ranks_answer(const ModelConfig& model, const std::string& layouts) {
  TinyRun run;
  run.model = model;
  run.samples = packed_samples;
  const LayoutAnswer expected = run_tiny(run);
  EXPECT_NE(expected.losses[0], expected.losses[2]);
  for (const ParallelConfig& layout : parse_layouts(layouts, {})) {
    run.parallel = layout;
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << layout_text(layout);
  }
  for (ParallelConfig layout : {ParallelConfig(), parse_layouts(layouts, {}).front()}) {
    layout.recompute_granularity = RecomputeGranularity::kFull;
    layout.recompute_num_layers = 1;
    run.parallel = layout;
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << "recompute";
  }
}

// More ranks than groups of B and C, and a norm that they share.
TEST(RecurrentLayouts, Mamba) {
  expect_one_ranks_answer(tiny_mamba(),
                          "tp2 tp4 tp8sp pp2 pp2vpp2 cp2 cp3 cp4 dp2zero1 dp2zero2 dp2zero3 tp2cp2 "
                          "tp2sp,pp2,cp2 pp2dp2zero3");
}

TEST(RecurrentLayouts, LayersOfOnePart) {
  expect_one_ranks_answer(tiny_nemotron_h(),
                          "tp2sp tp4 tp8 pp2 pp3vpp2 cp2 cp4 dp2zero3 dp2ep2 tp2sp,cp2,ep2 tp2cp2");
}

TEST(RecurrentLayouts, AttentionBesideMamba) {
  expect_one_ranks_answer(tiny_falcon_h1(), "tp2sp tp4 pp2 cp2 cp2a2a cp3 dp2zero3 tp2cp2");
}

TEST(RecurrentLayouts, MambaAndExperts) {
  expect_one_ranks_answer(tiny_granite_h(), "tp2sp tp4 pp2 cp2 dp2zero3 dp2ep2 tp2cp2");
}

// Weights in bf16, decays and steps in f32, whose gradients and updates are cut by ZeRO too.
TEST(RecurrentLayouts, MixedPrecision) {
  for (const ModelConfig& model : {tiny_mamba(), tiny_nemotron_h()}) {
    TinyRun run;
    run.model = model;
    run.dtype = Dtype::kBf16;
    const LayoutAnswer expected = run_tiny(run);
    EXPECT_NE(expected.losses[0], expected.losses[2]);
    for (const ParallelConfig& layout : parse_layouts("tp2sp dp2zero1 dp2zero2 dp2zero3 cp2", {})) {
      run.parallel = layout;
      const LayoutAnswer answer = run_tiny(run);
      for (std::size_t step = 0; step < 3; ++step) {
        EXPECT_NEAR(answer.losses[step], expected.losses[step], 0.03) << layout_text(layout);
      }
    }
  }
}

}  // namespace
}  // namespace bev::test
