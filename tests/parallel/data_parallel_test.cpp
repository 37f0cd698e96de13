// Data parallelism does not change the result: every strategy, overlap, bucket size and hierarchy
// is compared with one rank, and bitwise with each other.
#include <gtest/gtest.h>

#include <mutex>

#include "backend/cpu/cpu_kernels.h"
#include "tests/parallel/late_world.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

using Strategy = ShardingStrategy;
constexpr Strategy kStrategies[] = {Strategy::kNoShard, Strategy::kOptim, Strategy::kOptimGrads,
                                    Strategy::kOptimGradsParams};

struct Ranks {
  std::int64_t tp = 1, pp = 1, dp = 1, instances = 1;
};

ParallelConfig layout(const Ranks& ranks, Strategy strategy, bool overlap = false,
                      std::int64_t bucket_size = 0) {
  ParallelConfig config;
  config.tensor_model_parallel_size = ranks.tp;
  config.sequence_parallel = ranks.tp > 1;
  config.pipeline_model_parallel_size = ranks.pp;
  config.data_parallel_size = ranks.dp;
  config.num_distributed_optimizer_instances = ranks.instances;
  config.data_parallel_sharding_strategy = strategy;
  config.ddp_bucket_size = bucket_size;
  config.overlap_grad_reduce = config.overlap_param_gather = overlap;
  return config;
}

std::string describe(const ParallelConfig& config) {
  return concat("tp ", config.tensor_model_parallel_size, " pp ",
                config.pipeline_model_parallel_size, " dp ", config.data_parallel_size,
                " instances ", config.num_distributed_optimizer_instances, " zero ",
                static_cast<int>(config.data_parallel_sharding_strategy), " overlap ",
                config.overlap_grad_reduce, " bucket ", config.ddp_bucket_size, " bf16 ",
                config.grad_reduce_in_bf16);
}

void expect_close(const LayoutAnswer& expected, const LayoutAnswer& actual) {
  TensorDifference gradients = largest_difference(expected.gradients, actual.gradients);
  EXPECT_LT(gradients.value, 1e-11) << "gradient of " << gradients.name;
  TensorDifference weights = largest_difference(expected.weights, actual.weights);
  EXPECT_LT(weights.value, 1e-9) << "weight " << weights.name;
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.grad_norms[i], expected.grad_norms[i], 1e-9 * expected.grad_norms[i]);
  }
}

void expect_same(const LayoutAnswer& expected, const LayoutAnswer& actual) {
  EXPECT_EQ(expected.losses, actual.losses);
  // The norm is summed over what each rank owns, which depends on the buckets.
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.grad_norms[i], expected.grad_norms[i], 1e-14 * expected.grad_norms[i]);
  }
  EXPECT_EQ(expected.gradients, actual.gradients);
  EXPECT_EQ(expected.weights, actual.weights);
}

// Every strategy, with overlap in many buckets and without it in one.
void expect_one_ranks_answer(TinyRun run, const std::vector<Ranks>& layouts) {
  LayoutAnswer expected = run_tiny(run);
  run.micro_batch_size = 1;
  for (const Ranks& ranks : layouts) {
    for (Strategy strategy : kStrategies) {
      for (bool overlap : {false, true}) {
        run.parallel = layout(ranks, strategy, overlap, overlap ? 100 : 0);
        SCOPED_TRACE(describe(run.parallel));
        expect_close(expected, run_tiny(run));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TinyRun one_rank(ModelConfig model, std::int64_t samples) {
  TinyRun run;
  run.model = std::move(model);
  run.global_batch_size = run.micro_batch_size = samples;
  return run;
}

TEST(DataParallel, GivesOneRanksAnswer) {
  std::vector<Ranks> layouts = {{1, 1, 2, 1}, {1, 1, 2, 2}, {1, 1, 4, 1}, {1, 1, 4, 2}};
  expect_one_ranks_answer(one_rank(tiny_gpt(), 8), layouts);
  expect_one_ranks_answer(one_rank(tiny_llama(), 8), layouts);
}

// Gradients that are partial over tp, and an embedding held by two stages.
TEST(DataParallel, GivesOneRanksAnswerBesideTensorAndPipelineParallelism) {
  std::vector<Ranks> layouts = {{2, 1, 2, 1}, {1, 2, 2, 1}, {1, 2, 4, 2}, {2, 2, 2, 1}};
  expect_one_ranks_answer(one_rank(tiny_gpt(), 8), layouts);
  expect_one_ranks_answer(one_rank(tiny_llama(), 8), layouts);
}

// Ranks with fewer samples, or none, in a micro-batch take part in all collectives.
TEST(DataParallel, UnevenAndEmptySharesGiveOneRanksAnswer) {
  std::vector<Ranks> layouts = {{1, 1, 3, 1}, {1, 1, 4, 2}, {2, 1, 2, 2}, {1, 2, 3, 1}};
  expect_one_ranks_answer(one_rank(tiny_gpt(), 5), layouts);
}

TEST(DataParallel, RecomputeGivesOneRanksAnswer) {
  TinyRun run = one_rank(tiny_llama(), 4);
  LayoutAnswer expected = run_tiny(run);
  run.micro_batch_size = 1;
  for (Strategy strategy : kStrategies) {
    run.parallel = layout({1, 1, 2, 1}, strategy, true, 100);
    run.parallel.recompute_granularity = RecomputeGranularity::kFull;
    run.parallel.recompute_num_layers = 2;
    SCOPED_TRACE(describe(run.parallel));
    expect_close(expected, run_tiny(run));
  }
}

TEST(DataParallel, OverlapAndBucketSizeDoNotChangeABit) {
  TinyRun run = one_rank(tiny_gpt(), 8);
  run.dtype = Dtype::kF32;
  run.micro_batch_size = 1;
  for (const Ranks& ranks : {Ranks{1, 1, 4, 2}, Ranks{2, 1, 2, 1}, Ranks{1, 2, 2, 1}}) {
    for (Strategy strategy : kStrategies) {
      run.parallel = layout(ranks, strategy);
      LayoutAnswer plain = run_tiny(run);
      for (std::int64_t bucket_size : {100, 2000}) {
        for (bool overlap : {false, true}) {
          run.parallel = layout(ranks, strategy, overlap, bucket_size);
          SCOPED_TRACE(describe(run.parallel));
          expect_same(plain, run_tiny(run));
        }
      }
    }
  }
}

// Weights of every rank after three steps on a world that completes collectives as late as
// possible. tp is 1.
std::vector<NamedTensors> train_late(const TinyRun& run) {
  std::vector<NamedTensors> weights(static_cast<std::size_t>(mesh_shape(run.parallel).size()));
  run_thread_ranks(static_cast<int>(weights.size()), {60.0}, [&](World& world) {
    LateWorld late(world);
    EngineOptions options;
    options.model = run.model;
    options.parallel = run.parallel;
    options.dtype = run.dtype;
    Engine engine(late, cpu_kernels(), options);
    for (std::int64_t step = 0; step < run.steps; ++step) {
      std::vector<MicroBatch> batches = rank_micro_batches(
          engine.model().ctx(),
          random_samples(run.model.vocab_size, run.global_batch_size, run.sequence_length,
                         77 + static_cast<std::uint64_t>(step)),
          run.micro_batch_size);
      engine.train_step(batches, {step + 1, 1e-2, 0.1, 1.0, 1.0});
      engine.evaluate(batches);
    }
    NamedTensors& mine = weights[static_cast<std::size_t>(world.rank())];
    for (const Param* param : engine.model().store().params()) {
      WeightLease value = engine.model().store().local_value(*param);
      const auto* data = value.view.as<float>();
      mine[param->name].assign(data, data + value.view.numel());
    }
  });
  return weights;
}

// No buffer is read before it has arrived, or written while it is in flight.
TEST(DataParallel, WaitsForAllThatItUses) {
  TinyRun run = one_rank(tiny_gpt(), 8);
  run.dtype = Dtype::kF32;
  run.micro_batch_size = 1;
  for (const Ranks& ranks : {Ranks{1, 1, 4, 2}, Ranks{1, 2, 2, 1}}) {
    for (Strategy strategy : kStrategies) {
      for (bool bf16 : {false, true}) {
        run.parallel = layout(ranks, strategy, true, 100);
        run.parallel.grad_reduce_in_bf16 = bf16;
        SCOPED_TRACE(describe(run.parallel));
        LayoutAnswer prompt = run_tiny(run);
        for (const NamedTensors& rank : train_late(run)) {
          for (const auto& [name, values] : rank) EXPECT_EQ(values, prompt.weights[name]) << name;
        }
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(DataParallel, Bf16OnTheWireIsCloseAndTheSameForAllStrategiesThatSumOnce) {
  TinyRun run = one_rank(tiny_llama(), 8);
  run.dtype = Dtype::kF32;
  run.micro_batch_size = 1;
  run.steps = 1;
  for (const Ranks& ranks : {Ranks{1, 1, 4, 1}, Ranks{1, 1, 4, 2}, Ranks{1, 1, 3, 1}}) {
    std::vector<LayoutAnswer> answers;
    for (Strategy strategy : kStrategies) {
      run.parallel = layout(ranks, strategy, true, 100);
      LayoutAnswer wide = run_tiny(run);
      run.parallel.grad_reduce_in_bf16 = true;
      SCOPED_TRACE(describe(run.parallel));
      answers.push_back(run_tiny(run));
      TensorDifference gradients = largest_difference(wide.gradients, answers.back().gradients);
      EXPECT_LT(gradients.value, 8e-3) << "gradient of " << gradients.name;
      EXPECT_GT(gradients.value, 0);
    }
    // With one level, all-reduce and reduce-scatter perform the same additions.
    if (ranks.instances == 1) {
      EXPECT_EQ(answers[0].gradients, answers[1].gradients);
      EXPECT_EQ(answers[0].weights, answers[1].weights);
    }
    EXPECT_EQ(answers[2].gradients, answers[3].gradients);
  }
}

}  // namespace
}  // namespace bev::test
