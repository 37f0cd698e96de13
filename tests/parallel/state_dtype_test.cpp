// Gradients and optimizer state in bf16 and 8 bits: training follows fp32, and layouts agree as far
// as rounding allows. Offloaded optimizer state: nothing changes.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_kernels.h"
#include "base/text.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

constexpr Dtype kF32 = Dtype::kF32, kBf16 = Dtype::kBf16, kFp8 = Dtype::kU8;
const OptimDtypes kNarrow = {kBf16, kBf16, kBf16, kBf16};
const OptimDtypes kFp8Moments = {kF32, kF32, kFp8, kFp8};

struct Layout {
  std::int64_t tp = 1, pp = 1, dp = 1;
  ShardingStrategy strategy = ShardingStrategy::kNoShard;
  std::int64_t ep = 1, etp = 0;
};

struct StateRun {
  ModelConfig model = tiny_llama();
  OptimDtypes dtypes = {};
  Layout layout = {};
  std::int64_t steps = 3;
  bool same_batch = false;  // in every step, so that a model can memorise it
  double lr = 1e-2;
  double offloaded = 0;  // fraction of the state
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  Dtype dtype = kBf16;
};

LayoutAnswer answer_of(const StateRun& state) {
  LayoutRun run;
  run.engine.model = state.model;
  run.engine.dtype = state.dtype;
  run.engine.optim.optimizer = state.optimizer;
  run.engine.optim.dtypes = state.dtypes;
  run.engine.optim.optimizer_cpu_offload = state.offloaded > 0;
  run.engine.optim.optimizer_offload_fraction = state.offloaded;
  ParallelConfig& parallel = run.engine.parallel;
  parallel.tensor_model_parallel_size = state.layout.tp;
  parallel.sequence_parallel = state.layout.tp > 1;
  parallel.pipeline_model_parallel_size = state.layout.pp;
  parallel.data_parallel_size = state.layout.dp;
  parallel.data_parallel_sharding_strategy = state.layout.strategy;
  parallel.expert_model_parallel_size = state.layout.ep;
  parallel.expert_tensor_parallel_size = state.layout.etp;
  run.steps = state.steps;
  run.lr = state.lr;
  std::vector<StepSamples> batches;
  for (std::int64_t step = 0; step < state.steps; ++step) {
    const auto seed = static_cast<std::uint64_t>(state.same_batch ? 5 : 5 + step);
    batches.push_back(random_samples(state.model.vocab_size, 4, 11, seed));
  }
  return run_layout(run, cpu_kernels(), batches);
}

TEST(StateDtype, TrainingInBf16FollowsFp32) {
  for (const ModelConfig& model : {tiny_llama(), tiny_gpt()}) {
    StateRun run{.model = model, .steps = 40, .same_batch = true, .lr = 3e-3};
    LayoutAnswer wide = answer_of(run);
    run.dtypes = kNarrow;
    LayoutAnswer narrow = answer_of(run);
    EXPECT_LT(wide.losses.back(), 0.5 * wide.losses.front());
    EXPECT_LT(narrow.losses.back(), 0.5 * narrow.losses.front());
    EXPECT_NEAR(narrow.losses.back(), wide.losses.back(), 0.15 * wide.losses.front());
    EXPECT_NE(narrow.weights, wide.weights);
  }
}

// The bound is a fiftieth of the reduction of the loss.
TEST(StateDtype, TrainingWithMomentsInFp8FollowsFp32) {
  for (const ModelConfig& model : {tiny_llama(), tiny_gpt()}) {
    StateRun run{.model = model, .steps = 60, .same_batch = true, .lr = 1e-3};
    LayoutAnswer wide = answer_of(run);
    double gain = wide.losses.front() - wide.losses.back();
    EXPECT_GT(gain, 0.3 * wide.losses.front());
    for (OptimDtypes dtypes : {kFp8Moments, OptimDtypes{kBf16, kBf16, kFp8, kFp8},
                               OptimDtypes{kF32, kF32, kFp8, kBf16}}) {
      run.dtypes = dtypes;
      LayoutAnswer narrow = answer_of(run);
      EXPECT_NEAR(narrow.losses.back(), wide.losses.back(), 0.02 * gain);
      EXPECT_NE(narrow.weights, wide.weights);
    }
  }
}

// The same kernels on the same values, wherever they are stored.
TEST(StateDtype, OffloadChangesNothing) {
  using Strategy = ShardingStrategy;
  const Layout layouts[] = {{},
                            {.dp = 2, .strategy = Strategy::kOptim},
                            {.dp = 2, .strategy = Strategy::kOptimGrads},
                            {.dp = 3, .strategy = Strategy::kOptimGradsParams},
                            {.tp = 2, .pp = 2, .dp = 2, .strategy = Strategy::kOptim}};
  for (const Layout& layout : layouts) {
    for (const OptimDtypes& dtypes : {OptimDtypes{}, kNarrow, kFp8Moments}) {
      StateRun run{.dtypes = dtypes, .layout = layout};
      LayoutAnswer there = answer_of(run);
      for (double fraction : {0.4, 1.0}) {
        run.offloaded = fraction;
        LayoutAnswer here = answer_of(run);
        EXPECT_EQ(here.losses, there.losses);
        EXPECT_EQ(here.weights, there.weights);
      }
    }
  }
  for (Dtype dtype : {kBf16, Dtype::kF16, Dtype::kF64}) {
    StateRun run{.optimizer = OptimizerKind::kSgd, .dtype = dtype};
    LayoutAnswer there = answer_of(run);
    run.offloaded = 0.6;
    EXPECT_EQ(answer_of(run).weights, there.weights);
  }
}

// Expert parameters are sharded over other ranks; their biases have no state.
TEST(StateDtype, OffloadChangesNothingWithExperts) {
  using Strategy = ShardingStrategy;
  const Layout layouts[] = {
      {.dp = 2, .ep = 2},
      {.dp = 4, .strategy = Strategy::kOptim, .ep = 2},
      {.tp = 2, .dp = 2, .strategy = Strategy::kOptimGradsParams, .ep = 2, .etp = 1},
      {.pp = 2, .dp = 2, .strategy = Strategy::kOptimGrads, .ep = 2}};
  StateRun run;
  run.model.moe.num_experts = 5;
  run.model.moe.score_function = RouterScore::kSigmoid;
  run.model.moe.expert_bias = true;
  run.model.moe_training.bias_update_rate = 0.01;
  for (const Layout& layout : layouts) {
    for (const OptimDtypes& dtypes : {OptimDtypes{}, kNarrow, kFp8Moments}) {
      run.layout = layout;
      run.dtypes = dtypes;
      run.offloaded = 0;
      LayoutAnswer there = answer_of(run);
      for (double fraction : {0.4, 1.0}) {
        run.offloaded = fraction;
        LayoutAnswer here = answer_of(run);
        EXPECT_EQ(here.losses, there.losses);
        EXPECT_EQ(here.weights, there.weights);
      }
    }
  }
}

// Each dtype alone: it changes the update and never the first gradient.
TEST(StateDtype, EachPartMayBeNarrow) {
  LayoutAnswer wide = answer_of({});
  for (const OptimDtypes& dtypes :
       {OptimDtypes{.main_params = kBf16}, OptimDtypes{.exp_avg = kBf16},
        OptimDtypes{.exp_avg_sq = kBf16}, OptimDtypes{.main_grads = kBf16},
        OptimDtypes{.exp_avg = kFp8}, OptimDtypes{.exp_avg_sq = kFp8}}) {
    LayoutAnswer narrow = answer_of({.dtypes = dtypes});
    if (dtypes.main_grads == kF32) {
      EXPECT_EQ(narrow.gradients, wide.gradients);
    } else {
      EXPECT_LT(largest_difference(wide.gradients, narrow.gradients).value, 0x1p-5);
    }
    EXPECT_NE(narrow.weights, wide.weights);
    EXPECT_LT(largest_difference(wide.weights, narrow.weights).value, 0.1);
  }
}

// Copies of a parameter on several ranks also stay bitwise equal, which run_layout() checks.
TEST(StateDtype, LayoutsAgreeToTheRoundingOfTheState) {
  using Strategy = ShardingStrategy;
  const OptimDtypes narrowest = {kBf16, kBf16, kFp8, kFp8};
  for (const ModelConfig& model : {tiny_llama(), tiny_gpt()}) {
    const OptimDtypes& dtypes = model.family == tiny_gpt().family ? narrowest : kNarrow;
    LayoutAnswer one = answer_of({.model = model, .dtypes = dtypes});
    for (const Layout& layout :
         {Layout{.dp = 2}, Layout{.dp = 4, .strategy = Strategy::kOptim},
          Layout{.dp = 2, .strategy = Strategy::kOptimGrads},
          Layout{.dp = 2, .strategy = Strategy::kOptimGradsParams}, Layout{.tp = 2},
          Layout{.pp = 2}, Layout{.tp = 2, .pp = 2, .dp = 2, .strategy = Strategy::kOptim}}) {
      SCOPED_TRACE(concat(model.family, " tp ", layout.tp, " pp ", layout.pp, " dp ", layout.dp,
                          " zero ", static_cast<int>(layout.strategy)));
      LayoutAnswer other = answer_of({.model = model, .dtypes = dtypes, .layout = layout});
      EXPECT_LT(largest_difference(one.gradients, other.gradients, 1e-2).value, 0x1p-4);
      EXPECT_NEAR(other.losses[0], one.losses[0], 0.02);
      EXPECT_NEAR(other.losses[2], one.losses[2], 0.1);
    }
  }
}

}  // namespace
}  // namespace bev::test
