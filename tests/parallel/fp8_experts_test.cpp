// MoE experts in FP8: only the blockwise recipe applies to them, and layouts give the result of one
// rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parallel/fp8_runs.h"

namespace bev::test {
namespace {

// Sizes that two ranks of tp and of etp can split into blocks; an odd number of experts.
TinyRun experts_run(Fp8Scaling recipe = Fp8Scaling::kBlockwise) {
  TinyRun run = fp8_run(recipe);
  run.model = fp8_llama(true);
  run.model.moe.num_experts = 3;
  run.model.moe.topk = 2;
  run.model.moe.ffn_hidden_size = 256;
  run.model.moe.shared_expert_size = 256;
  return run;
}

TEST(Fp8Experts, OnlyBlocksAreForThem) {
  for (Fp8Scaling recipe :
       {Fp8Scaling::kTensorwise, Fp8Scaling::kDelayed, Fp8Scaling::kBlockwise}) {
    int rounded = 0;
    with_engines(experts_run(recipe), [&](Engine& engine) {
      for (const Param* param : engine.model().store().params()) {
        rounded += param->shape.ndim() == 3 && param->fp8.used();
      }
    });
    EXPECT_EQ(rounded, recipe == Fp8Scaling::kBlockwise ? 4 : 0) << static_cast<int>(recipe);
  }
}

TEST(Fp8Experts, AreNearTheModelsOwnPrecision) {
  TinyRun run = experts_run();
  run.model.moe.topk = run.model.moe.num_experts;  // so that rounding cannot change a choice
  TinyRun plain = run;
  plain.fp8 = {};
  LayoutAnswer exact = run_tiny(plain), rounded = run_tiny(run);
  EXPECT_NE(rounded.losses[0], exact.losses[0]);
  for (std::size_t i = 0; i < exact.losses.size(); ++i) {
    EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.03 * exact.losses[i]) << "step " << i;
  }
  EXPECT_LT(largest_difference(exact.gradients, rounded.gradients).value, 0.3);
  run.fp8.fp8_wgrad = false;
  EXPECT_NE(run_tiny(run).gradients, rounded.gradients);
}

TEST(Fp8Experts, RecomputingChangesNoBit) {
  TinyRun run = experts_run();
  LayoutAnswer kept = run_tiny(run);
  run.parallel.recompute_granularity = RecomputeGranularity::kSelective;
  run.parallel.recompute_modules = {"layernorm", "activation", "mlp"};
  EXPECT_EQ(run_tiny(run).weights, kept.weights);
  run.parallel.recompute_granularity = RecomputeGranularity::kFull;
  EXPECT_EQ(run_tiny(run).weights, kept.weights);
}

struct Layout {
  const char* name;
  ParallelConfig parallel;
};

std::vector<Layout> layouts() {
  std::vector<Layout> out;
  auto add = [&](const char* name, std::int64_t dp, std::int64_t ep) -> ParallelConfig& {
    ParallelConfig& parallel = out.emplace_back(Layout{name, {}}).parallel;
    parallel.data_parallel_size = dp;
    parallel.expert_model_parallel_size = ep;
    return parallel;
  };
  add("ep 2", 2, 2);
  add("ep 2, allgather", 2, 2).moe_token_dispatcher = TokenDispatcher::kAllGather;
  ParallelConfig& etp = add("tp 2, sp, etp 2", 1, 1);
  etp.tensor_model_parallel_size = 2;
  etp.sequence_parallel = true;
  ParallelConfig& both = add("tp 2, dp 2, etp 2, ep 2", 2, 2);
  both.tensor_model_parallel_size = both.expert_tensor_parallel_size = 2;
  ParallelConfig& whole = add("tp 2, etp 1, ep 2", 1, 2);
  whole.tensor_model_parallel_size = 2;
  whole.expert_tensor_parallel_size = 1;
  ParallelConfig& fixed = add("ep 2, room for fewer rows", 2, 2);
  fixed.moe_expert_rank_capacity_factor = 1.2;
  ParallelConfig& turns = add("pp 2, ep 2, taking turns", 2, 2);
  turns.pipeline_model_parallel_size = 2;
  turns.moe_expert_rank_capacity_factor = 3;
  turns.overlap_moe_expert_parallel_comm = turns.delay_wgrad_compute = true;
  ParallelConfig& zero1 = add("dp 2, ZeRO-1", 2, 1);
  zero1.data_parallel_sharding_strategy = ShardingStrategy::kOptim;
  ParallelConfig& zero3 = add("ep 2, dp 4, ZeRO-3", 4, 2);
  zero3.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
  zero3.overlap_param_gather = zero3.overlap_grad_reduce = true;
  ParallelConfig& bubble = add("pp 2, zero bubble", 1, 1);
  bubble.pipeline_model_parallel_size = 2;
  bubble.pipeline_schedule = PipelineSchedule::kZeroBubbleH1;
  return out;
}

// Rows have their own scales, so results and dgrad are those of one rank up to the order of sums.
// Blocks of tokens in wgrad differ if ep combines other rows. After an update a routing choice may
// change.
TEST(Fp8Experts, LayoutsGiveOneRanksAnswer) {
  for (bool weights : {false, true}) {
    TinyRun single = experts_run();
    single.fp8.fp8_wgrad = weights;
    LayoutAnswer expected = run_tiny(single);
    for (const Layout& layout : layouts()) {
      SCOPED_TRACE(concat(layout.name, weights ? ", weight gradients too" : ""));
      TinyRun run = single;
      run.parallel = layout.parallel;
      LayoutAnswer actual = run_tiny(run);
      EXPECT_EQ(answer_difference(expected, actual, {weights ? 0.1 : 0.05, 0, 1e-3}), "");
      EXPECT_NEAR(actual.losses[0], expected.losses[0], 1e-3);
      for (std::size_t i = 1; i < expected.losses.size(); ++i) {
        EXPECT_NEAR(actual.losses[i], expected.losses[i], 0.02 * expected.losses[i]);
      }
    }
  }
}

TEST(Fp8Experts, SizesThatBlocksDoNotFitAreNamed) {
  TinyRun run = experts_run();
  auto problems = [&](std::int64_t tp, std::int64_t etp) {
    return run.fp8.problems(run.model, Dtype::kBf16, tp, etp);
  };
  EXPECT_THAT(problems(2, 0), testing::IsEmpty());
  run.model.moe.ffn_hidden_size = 384;
  EXPECT_THAT(problems(1, 0), testing::IsEmpty());
  EXPECT_THAT(problems(2, 1), testing::IsEmpty());
  EXPECT_THAT(problems(2, 0), testing::ElementsAre(testing::HasSubstr("--moe-ffn-hidden-size")));
  EXPECT_THAT(problems(1, 2), testing::ElementsAre(testing::HasSubstr("--moe-ffn-hidden-size")));
  run.fp8.fp8_recipe = Fp8Scaling::kTensorwise;
  EXPECT_THAT(problems(1, 2), testing::IsEmpty());
}

}  // namespace
}  // namespace bev::test
