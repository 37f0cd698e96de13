// The layout never changes the answer: every layout is compared with one rank, in f64 up to
// rounding.
#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

struct LayoutCase {
  std::string name;
  ParallelConfig parallel;
  std::int64_t micro_batch_size = 1;
};

ParallelConfig layout(std::int64_t tp, std::int64_t pp, std::int64_t dp,
                      bool sequence_parallel = false,
                      ShardingStrategy strategy = ShardingStrategy::kNoShard) {
  ParallelConfig config;
  config.tensor_model_parallel_size = tp;
  config.pipeline_model_parallel_size = pp;
  config.data_parallel_size = dp;
  config.sequence_parallel = sequence_parallel;
  config.data_parallel_sharding_strategy = strategy;
  return config;
}

ParallelConfig interleaved(ParallelConfig config, std::int64_t chunks) {
  config.num_virtual_stages_per_pipeline_rank = chunks;
  return config;
}

ParallelConfig full_recompute(ParallelConfig config, RecomputeMethod method, std::int64_t layers) {
  config.recompute_granularity = RecomputeGranularity::kFull;
  config.recompute_method = method;
  config.recompute_num_layers = layers;
  return config;
}

ParallelConfig selective(ParallelConfig config, std::vector<std::string> modules) {
  config.recompute_granularity = RecomputeGranularity::kSelective;
  config.recompute_modules = std::move(modules);
  return config;
}

std::vector<LayoutCase> cases() {
  using S = ShardingStrategy;
  return {
      {"accumulate4", layout(1, 1, 1), 1},
      {"tp2", layout(2, 1, 1), 4},
      {"tp2sp", layout(2, 1, 1, true), 4},
      {"pp2", layout(1, 2, 1), 1},
      {"pp4", layout(1, 4, 1), 1},
      {"pp2vpp2", interleaved(layout(1, 2, 1), 2), 1},
      {"dp2", layout(1, 1, 2), 1},
      {"dp2zero1", layout(1, 1, 2, false, S::kOptim), 2},
      {"dp2zero2", layout(1, 1, 2, false, S::kOptimGrads), 1},
      {"dp2zero3", layout(1, 1, 2, false, S::kOptimGradsParams), 1},
      {"dp4zero3", layout(1, 1, 4, false, S::kOptimGradsParams), 1},
      {"tp2sp_pp2_dp2zero1", layout(2, 2, 2, true, S::kOptim), 1},
      {"tp2_pp2_dp2zero3", layout(2, 2, 2, false, S::kOptimGradsParams), 1},
      {"recompute_uniform1", full_recompute(layout(1, 1, 1), RecomputeMethod::kUniform, 1), 4},
      {"recompute_uniform3_tp2sp",
       full_recompute(layout(2, 1, 1, true), RecomputeMethod::kUniform, 3), 2},
      {"recompute_block2_pp2", full_recompute(layout(1, 2, 1), RecomputeMethod::kBlock, 1), 1},
      {"recompute_full_dp2zero3",
       full_recompute(layout(1, 1, 2, false, S::kOptimGradsParams), RecomputeMethod::kUniform, 2),
       1},
      {"selective_all_tp2sp",
       selective(layout(2, 1, 1, true), {"core_attn", "layernorm", "activation"}), 2},
      {"selective_mlp", selective(layout(1, 1, 1), {"mlp", "layernorm"}), 2},
  };
}

void expect_same_answer(const ModelConfig& model, Dtype dtype, double gradient_tolerance,
                        double weight_tolerance) {
  TinyRun single;
  single.model = model;
  single.dtype = dtype;
  single.micro_batch_size = 4;
  LayoutAnswer expected = run_tiny(single);
  for (const LayoutCase& test : cases()) {
    SCOPED_TRACE(test.name);
    TinyRun run = single;
    run.parallel = test.parallel;
    run.micro_batch_size = test.micro_batch_size;
    LayoutAnswer actual = run_tiny(run);
    ASSERT_EQ(actual.losses.size(), expected.losses.size());
    for (std::size_t i = 0; i < expected.losses.size(); ++i) {
      double tolerance = i == 0 ? gradient_tolerance : weight_tolerance;
      EXPECT_NEAR(actual.losses[i], expected.losses[i], tolerance * expected.losses[i])
          << "step " << i;
      EXPECT_NEAR(actual.grad_norms[i], expected.grad_norms[i], tolerance * expected.grad_norms[i]);
    }
    TensorDifference gradients = largest_difference(expected.gradients, actual.gradients);
    EXPECT_LT(gradients.value, gradient_tolerance) << "gradient of " << gradients.name;
    EXPECT_EQ(wrong_numbers(actual, gradient_tolerance), "");
    // Adam turns the rounding noise of a gradient that is zero in exact arithmetic (the bias of k)
    // into full steps, so f32 weights are not comparable.
    if (dtype != Dtype::kF64) continue;
    TensorDifference weights = largest_difference(expected.weights, actual.weights);
    EXPECT_LT(weights.value, weight_tolerance) << "weight " << weights.name;
  }
}

// Embedding rows of tokens that no sample has are zero, which rounding cannot change.
TEST(Layout, EveryLayoutTellsTheSameZerosAndNorm) {
  using S = ShardingStrategy;
  TinyRun single;
  single.model = uneven_llama();
  LayoutAnswer expected = run_tiny(single);
  const std::vector<double>& norms = expected.reports.at(kParamsNorm);
  EXPECT_GT(expected.reports.at(kNumZeros).front(), 0);
  for (S strategy : {S::kNoShard, S::kOptim, S::kOptimGrads, S::kOptimGradsParams}) {
    TinyRun run = single;
    run.parallel = layout(2, 2, 2, true, strategy);
    LayoutAnswer actual = run_tiny(run);
    EXPECT_EQ(actual.reports.at(kNumZeros), expected.reports.at(kNumZeros));
    for (std::size_t i = 0; i < norms.size(); ++i) {
      EXPECT_NEAR(actual.reports.at(kParamsNorm)[i], norms[i], 1e-9);
    }
  }
}

TEST(Layout, GptGivesOneRanksAnswerInF64) {
  expect_same_answer(tiny_gpt(), Dtype::kF64, 1e-11, 1e-9);
}
TEST(Layout, LlamaGivesOneRanksAnswerInF64) {
  expect_same_answer(tiny_llama(), Dtype::kF64, 1e-11, 1e-9);
}
TEST(Layout, DeepseekGivesOneRanksAnswerInF64) {
  expect_same_answer(tiny_deepseek(), Dtype::kF64, 1e-11, 1e-9);
}
// Embeddings and heads on the last stage: its own, copies, and shared with another stage of the
// rank.
TEST(Layout, MultiTokenPredictionGivesOneRanksAnswerInF64) {
  ModelConfig model = tiny_deepseek();
  model.mtp_num_layers = 2;
  model.mtp_loss_scaling_factor = 0.7;
  model.hidden_dropout = 0.1;
  for (bool untied : {true, false}) {
    model.untie_embeddings_and_output_weights = untied;
    expect_same_answer(model, Dtype::kF64, 1e-11, 1e-9);
  }
}
// MTP modules on any stages after the last layer: alone, together with layers, over several stages,
// on ranks that already hold the embedding.
TEST(Layout, DepthsOnOtherStagesGiveOneRanksAnswer) {
  TinyRun single;
  single.model = tiny_deepseek();
  single.model.mtp_num_layers = 2;
  single.model.mtp_loss_scaling_factor = 0.7;
  single.model.hidden_dropout = 0.1;
  std::int64_t layers = single.model.num_layers;
  auto placed = [&](ParallelConfig config, const std::string& behind) {
    config.pipeline_model_parallel_layout = concat("Et|t*", layers - 1, behind);
    return config;
  };
  using S = ShardingStrategy;
  ParallelConfig cut = layout(1, 3, 1), zero_bubble = layout(1, 4, 1);
  cut.context_parallel_size = 2;
  zero_bubble.pipeline_schedule = PipelineSchedule::kZeroBubbleH1;
  const std::vector<ParallelConfig> layouts = {
      placed(layout(1, 4, 1), "|mm|L"),
      placed(layout(2, 3, 1, true), "m|mL"),
      placed(layout(2, 4, 1), "|m|mL"),
      placed(layout(1, 2, 2, false, S::kOptimGradsParams), "m||mL"),
      placed(layout(1, 2, 1), "|mm|L"),
      placed(cut, "mm|L"),
      full_recompute(placed(zero_bubble, "m|m|L"), RecomputeMethod::kUniform, 1),
  };
  for (bool untied : {true, false}) {
    single.model.untie_embeddings_and_output_weights = untied;
    LayoutAnswer expected = run_tiny(single);
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      TinyRun run = single;
      run.parallel = layouts[i];
      EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << "layout " << i;
    }
  }
}

TEST(Layout, GptOssGivesOneRanksAnswerInF64) {
  expect_same_answer(tiny_gpt_oss(), Dtype::kF64, 1e-11, 1e-9);
}
TEST(Layout, GptGivesOneRanksAnswerInF32) {
  expect_same_answer(tiny_gpt(), Dtype::kF32, 2e-5, 2e-3);
}
TEST(Layout, LlamaGivesOneRanksAnswerInF32) {
  expect_same_answer(tiny_llama(), Dtype::kF32, 2e-5, 2e-3);
}

TEST(Layout, DropoutAndAwkwardChoicesGiveOneRanksAnswer) {
  ModelConfig model = tiny_llama();
  model.hidden_dropout = 0.2;
  model.attention_dropout = 0.3;
  model.qk_layernorm = true;
  model.norm_placement = NormPlacement::kPreAndPost;
  model.add_bias_linear = true;
  model.untie_embeddings_and_output_weights = false;
  model.attn_logit_softcapping = 5;
  model.final_logit_softcapping = 7;
  model.window_size = 3;
  model.window_layers = {1, 0, 1, 0};
  model.rotary_base_local = 100;
  model.num_layers = 4;
  expect_same_answer(model, Dtype::kF64, 1e-11, 1e-9);
  model.parallel_residual = true;
  model.norm_placement = NormPlacement::kPre;
  expect_same_answer(model, Dtype::kF64, 1e-11, 1e-9);
}

// Five samples do not divide evenly: some ranks get fewer, or none, in the last micro-batch.
TEST(Layout, UnevenAndEmptySharesGiveOneRanksAnswer) {
  using S = ShardingStrategy;
  TinyRun single;
  single.model = tiny_llama();
  single.global_batch_size = 5;
  single.micro_batch_size = 5;
  LayoutAnswer expected = run_tiny(single);
  for (ParallelConfig parallel :
       {layout(1, 1, 2), layout(1, 1, 3), layout(1, 1, 4, false, S::kOptimGradsParams),
        layout(1, 1, 3, false, S::kOptim), layout(2, 1, 2, true, S::kOptimGrads),
        layout(1, 2, 2, false, S::kOptimGrads), layout(1, 2, 3, false, S::kOptimGradsParams)}) {
    TinyRun run = single;
    run.parallel = parallel;
    run.micro_batch_size = 1;
    LayoutAnswer actual = run_tiny(run);
    TensorDifference gradients = largest_difference(expected.gradients, actual.gradients);
    EXPECT_LT(gradients.value, 1e-11) << "gradient of " << gradients.name;
    TensorDifference weights = largest_difference(expected.weights, actual.weights);
    EXPECT_LT(weights.value, 1e-9) << "weight " << weights.name;
  }
}

TEST(Layout, Bf16LayoutsAgreeToTheirRounding) {
  TinyRun single;
  single.model = tiny_llama();
  single.dtype = Dtype::kBf16;
  LayoutAnswer expected = run_tiny(single);
  for (ParallelConfig parallel : {layout(2, 1, 1, true), layout(1, 2, 2), layout(2, 2, 1)}) {
    TinyRun run = single;
    run.parallel = parallel;
    LayoutAnswer actual = run_tiny(run);
    EXPECT_NEAR(actual.losses[0], expected.losses[0], 2e-3 * expected.losses[0]);
    TensorDifference gradients = largest_difference(expected.gradients, actual.gradients);
    EXPECT_LT(gradients.value, 5e-2) << "gradient of " << gradients.name;
  }
}

TEST(Layout, ThreadCountDoesNotChangeABit) {
  TinyRun run;
  run.model = tiny_gpt();
  // Wide enough that GEMMs, norms and the loss are split into several pieces.
  run.model.hidden_size = 256;
  run.model.ffn_hidden_size = 1024;
  run.model.vocab_size = 1531;
  run.model.max_position_embeddings = 160;
  run.sequence_length = 150;
  run.micro_batch_size = 4;
  run.steps = 2;
  run.dtype = Dtype::kF32;
  LayoutAnswer one = run_tiny(run);
  run.threads = 3;
  LayoutAnswer three = run_tiny(run);
  EXPECT_EQ(one.losses, three.losses);
  EXPECT_EQ(one.weights, three.weights);
}

TEST(Layout, RecomputeDoesNotChangeABit) {
  for (Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    TinyRun run;
    run.model = tiny_llama();
    run.model.hidden_dropout = 0.1;
    run.dtype = dtype;
    LayoutAnswer plain = run_tiny(run);
    for (ParallelConfig parallel :
         {full_recompute(layout(1, 1, 1), RecomputeMethod::kUniform, 2),
          full_recompute(layout(1, 1, 1), RecomputeMethod::kBlock, 3),
          selective(layout(1, 1, 1), {"core_attn", "layernorm", "activation"}),
          selective(layout(1, 1, 1), {"mlp"})}) {
      run.parallel = parallel;
      LayoutAnswer again = run_tiny(run);
      EXPECT_EQ(plain.losses, again.losses);
      EXPECT_EQ(plain.gradients, again.gradients);
      EXPECT_EQ(plain.weights, again.weights);
    }
  }
}

}  // namespace
}  // namespace bev::test
