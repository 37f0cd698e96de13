// Gradients and optimizer state in bf16: training goes on as in fp32, and layouts agree as far as
// bf16 lets them.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_kernels.h"
#include "base/text.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

constexpr Dtype kF32 = Dtype::kF32, kBf16 = Dtype::kBf16;
const OptimDtypes kNarrow = {kBf16, kBf16, kBf16, kBf16};

struct Layout {
  std::int64_t tp = 1, pp = 1, dp = 1;
  ShardingStrategy strategy = ShardingStrategy::kNoShard;
};

struct StateRun {
  ModelConfig model = tiny_llama();
  OptimDtypes dtypes = {};
  Layout layout = {};
  std::int64_t steps = 3;
  bool same_batch = false;  // in every step, which a model can learn by heart
  double lr = 1e-2;
};

LayoutAnswer answer_of(const StateRun& state) {
  LayoutRun run;
  run.engine.model = state.model;
  run.engine.dtype = kBf16;
  run.engine.optim.dtypes = state.dtypes;
  ParallelConfig& parallel = run.engine.parallel;
  parallel.tensor_model_parallel_size = state.layout.tp;
  parallel.sequence_parallel = state.layout.tp > 1;
  parallel.pipeline_model_parallel_size = state.layout.pp;
  parallel.data_parallel_size = state.layout.dp;
  parallel.data_parallel_sharding_strategy = state.layout.strategy;
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

// Each alone: state changes the update and never the first gradient.
TEST(StateDtype, EachPartMayBeNarrow) {
  LayoutAnswer wide = answer_of({});
  for (const OptimDtypes& dtypes :
       {OptimDtypes{.main_params = kBf16}, OptimDtypes{.exp_avg = kBf16},
        OptimDtypes{.exp_avg_sq = kBf16}, OptimDtypes{.main_grads = kBf16}}) {
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

// Also: copies of a parameter on several ranks stay equal to the bit, which run_layout() checks.
TEST(StateDtype, LayoutsAgreeToTheRoundingOfBf16) {
  using Strategy = ShardingStrategy;
  for (const ModelConfig& model : {tiny_llama(), tiny_gpt()}) {
    LayoutAnswer one = answer_of({.model = model, .dtypes = kNarrow});
    for (const Layout& layout :
         {Layout{.dp = 2}, Layout{.dp = 4, .strategy = Strategy::kOptim},
          Layout{.dp = 2, .strategy = Strategy::kOptimGrads},
          Layout{.dp = 2, .strategy = Strategy::kOptimGradsParams}, Layout{.tp = 2},
          Layout{.pp = 2}, Layout{.tp = 2, .pp = 2, .dp = 2, .strategy = Strategy::kOptim}}) {
      SCOPED_TRACE(concat(model.family, " tp ", layout.tp, " pp ", layout.pp, " dp ", layout.dp,
                          " zero ", static_cast<int>(layout.strategy)));
      LayoutAnswer other = answer_of({.model = model, .dtypes = kNarrow, .layout = layout});
      EXPECT_LT(largest_difference(one.gradients, other.gradients, 1e-2).value, 0x1p-4);
      EXPECT_NEAR(other.losses[0], one.losses[0], 0.02);
      EXPECT_NEAR(other.losses[2], one.losses[2], 0.1);
    }
  }
}

}  // namespace
}  // namespace bev::test
