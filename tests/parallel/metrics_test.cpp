// Metrics declared by a program, under layouts of several ranks.
#include "autograd/metrics.h"

#include <gtest/gtest.h>

#include "backend/cpu/cpu_kernels.h"
#include "base/error.h"
#include "comm/world.h"
#include "data/batch.h"
#include "parallel/engine.h"
#include "tests/support/layouts.h"
#include "tests/support/watched_model.h"

namespace bev::test {
namespace {

struct LayoutCase {
  const char* name;
  ParallelConfig parallel;
};

ParallelConfig cut(std::int64_t tp, std::int64_t pp, std::int64_t cp, std::int64_t dp) {
  ParallelConfig parallel;
  parallel.tensor_model_parallel_size = tp;
  parallel.pipeline_model_parallel_size = pp;
  parallel.context_parallel_size = cp;
  parallel.data_parallel_size = dp;
  return parallel;
}

std::vector<LayoutCase> cases() {
  ParallelConfig tp_sp = cut(2, 1, 1, 1), zero3 = cut(1, 2, 1, 2), again = cut(2, 1, 1, 2);
  tp_sp.sequence_parallel = true;
  zero3.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
  again.recompute_granularity = RecomputeGranularity::kFull;
  again.recompute_num_layers = 1;
  return {{"tp2", cut(2, 1, 1, 1)}, {"tp2 with sequence parallelism", tp_sp},
          {"pp2", cut(1, 2, 1, 1)}, {"cp2", cut(1, 1, 2, 1)},
          {"dp2", cut(1, 1, 1, 2)}, {"pp2 dp2, ZeRO-3", zero3},
          {"recompute", again},     {"all", cut(2, 2, 2, 1)}};
}

TEST(Metrics, AProgramsOwnCountOnceUnderEveryLayout) {
  TinyRun run;
  run.model = tiny_llama();
  run.model.architecture = watched_architecture();
  run.objective = &watched_objective();
  run.metrics = {mixer_input_norm(), masked_tokens()};
  LayoutAnswer expected = run_tiny(run);
  std::vector<double> masked;
  for (std::uint64_t seed = 77; seed < 80; ++seed) {
    double count = 0;
    for (const TokenSample& sample : random_samples(run.model.vocab_size, 4, 11, seed)) {
      for (float weight : sample.weights) count += weight == 0 ? 1 : 0;
    }
    masked.push_back(count);
  }
  EXPECT_EQ(expected.reports.at("masked tokens"), masked);
  EXPECT_GT(expected.reports.at("mixer input norm").front(), 0);
  for (const LayoutCase& test : cases()) {
    run.parallel = test.parallel;
    LayoutAnswer actual = run_tiny(run);
    EXPECT_EQ(answer_difference(expected, actual), "") << test.name;
    EXPECT_EQ(actual.reports.at("masked tokens"), masked) << test.name;
  }
}

// With steps begun ahead, and with an evaluation in between, each step reports its own sums only.
TEST(Metrics, AreOfTheStepThatIsFinished) {
  run_thread_ranks(2, {60.0}, [](World& world) {
    EngineOptions options;
    options.model = tiny_llama();
    options.dtype = Dtype::kF64;
    options.parallel = cut(1, 1, 1, 2);
    options.objective = &watched_objective();
    options.metrics = {masked_tokens()};
    Engine engine(world, cpu_kernels(), options);
    auto batch = [&](std::uint64_t seed) {
      StepSamples samples = random_samples(options.model.vocab_size, 4, 11, seed);
      return rank_micro_batches(engine.model().ctx(), samples, 1);
    };
    std::vector<double> ahead, alone;
    for (std::int64_t i = 0; i < 3; ++i) {
      auto seed = static_cast<std::uint64_t>(i);
      engine.begin_step({batch(seed)}, {.iteration = i + 1, .lr = 1e-2});
    }
    for (int i = 0; i < 3; ++i) {
      ahead.push_back(engine.finish_step().result.metric("masked tokens")->value);
    }
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      EXPECT_TRUE(engine.evaluate(batch(seed)).metrics.empty());
      alone.push_back(engine.gradients(batch(seed), {1}).metric("masked tokens")->value);
    }
    EXPECT_EQ(ahead, alone);
    EXPECT_NE(ahead[0], ahead[1]);
  });
}

TEST(Metrics, AreFoundByNameWhereAskedFor) {
  Arena arena(make_host_memory());
  MetricBlock block;
  MetricId shown = block.declare({"shown"});
  MetricId hidden = block.declare({"hidden", MetricStyle::kHidden});
  MetricId late =
      block.declare({"late", MetricStyle::kNumber, MetricForm::kNorm, MetricPhase::kUpdate});
  MetricId mean = block.declare(
      {.name = "mean", .style = MetricStyle::kLoss, .form = MetricForm::kMean, .term = 1});
  MetricId derived =
      block.declare({"derived", MetricStyle::kLoss, MetricForm::kSum, MetricPhase::kHost});
  TableId table = block.declare_table(Dtype::kF32, {2, 3});
  TableId largest = block.declare_table(Dtype::kF64, {2}, Reduction::kMax);
  EXPECT_THROW(block.declare({"shown"}), Error);
  block.allocate(arena);
  EXPECT_EQ(block.find("shown"), block.at(shown));
  EXPECT_EQ(block.find("hidden"), nullptr);
  EXPECT_EQ(block.find("derived"), nullptr);
  EXPECT_EQ(block.find("no such"), nullptr);
  EXPECT_TRUE(block.shows(MetricPhase::kUpdate));

  // The block as fetch() returns it.
  *block.at(shown) = 3, *block.at(hidden) = 4, *block.at(late) = 25, *block.at(mean) = 7;
  float* rows = block.table(table).as<float>();
  for (int i = 0; i < 6; ++i) rows[i] = static_cast<float>(i);
  auto* begin = block.at(shown);
  double* maxima = block.table(largest).as<double>();
  maxima[0] = -1, maxima[1] = 6;
  std::vector<double> copy(begin, begin + 16 + 2);
  EXPECT_EQ(block.sum(copy, hidden), 4);
  EXPECT_EQ(block.table_values(copy, table), (std::vector<double>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(block.table_values(copy, largest), (std::vector<double>{-1, 6}));
  std::span<const Metric> told = block.tell(copy, std::vector<double>{1, 2}, 1);
  block.set(derived, 9);
  ASSERT_EQ(told.size(), 4u);
  EXPECT_EQ(told[0].value, 3);
  EXPECT_EQ(told[1].value, 5);
  EXPECT_EQ(told[2].value, 3.5);
  EXPECT_EQ(told[3].value, 9);
}

}  // namespace
}  // namespace bev::test
