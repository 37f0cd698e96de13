// MoE exchanges without host waits: what the host waits for, the effects of a repeated step, and
// what overlaps with an exchange.
#include <gtest/gtest.h>

#include <atomic>

#include "backend/cpu/cpu_kernels.h"
#include "base/trace.h"
#include "comm/world.h"
#include "kernels/device.h"
#include "parallel/engine.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

ModelConfig with_experts() {
  ModelConfig model = tiny_llama();
  model.moe.num_experts = 6;
  model.moe.topk = 2;
  model.moe.expert_bias = true;
  model.moe.score_function = RouterScore::kSigmoid;
  model.moe_training.load_balancing = {"global_aux_loss"};
  model.moe_training.aux_loss_coeff = {0.1};
  model.moe_training.bias_update_rate = 0.02;
  return model;
}

ParallelConfig two_by_ep() {
  ParallelConfig parallel;
  parallel.data_parallel_size = 2;
  parallel.expert_model_parallel_size = 2;
  return parallel;
}

EngineOptions options_of(const ParallelConfig& parallel) {
  EngineOptions options;
  options.model = with_experts();
  options.parallel = parallel;
  options.dtype = Dtype::kF64;
  return options;
}

std::vector<MicroBatch> batches_of(Engine& engine, int iteration) {
  return rank_micro_batches(engine.model().ctx(),
                            random_samples(engine.model().options().model.vocab_size, 8, 12,
                                           static_cast<std::uint64_t>(iteration)),
                            1);
}

struct Step {
  double loss = 0;
  std::vector<double> loads;
  bool redone = false;
};

// `ahead` steps are enqueued before the first one is waited for.
std::vector<Step> train(const ParallelConfig& parallel, int steps, int ahead) {
  std::vector<Step> out;
  run_thread_ranks(2, {60.0}, [&](World& world) {
    Engine engine(world, cpu_kernels(), options_of(parallel));
    std::vector<std::vector<MicroBatch>> batches;
    for (int i = 1; i <= steps; ++i) batches.push_back(batches_of(engine, i));
    int begun = 0;
    for (int i = 0; i < steps; ++i) {
      for (; begun < steps && begun <= i + ahead; ++begun) {
        engine.begin_step({batches[static_cast<std::size_t>(begun)]},
                          {begun + 1, 0.02, 0.1, 1.0, 1.0});
      }
      StepResult result = engine.finish_step().result;
      EXPECT_TRUE(result.finite);
      EXPECT_EQ(engine.updates(), i + 1);
      if (world.rank() != 0) continue;
      Step& step = out.emplace_back(Step{result.loss, {}, result.redone});
      for (const RouterLoad& load : result.routers) {
        step.loads.insert(step.loads.end(), {load.tokens_max, load.balance_loss, load.entropy});
      }
    }
  });
  return out;
}

int redone_of(const std::vector<Step>& steps) {
  return static_cast<int>(
      std::ranges::count_if(steps, [](const Step& step) { return step.redone; }));
}

TEST(ExpertOverlap, AStepThatIsDoneAgainIsSeenOnce) {
  constexpr int kSteps = 6;
  ParallelConfig parallel = two_by_ep();
  std::vector<Step> exact = train(parallel, kSteps, 0);
  EXPECT_EQ(redone_of(exact), 0);
  int some = 0;
  for (double factor : {0.3, 1.6, 4.0}) {
    parallel.moe_expert_rank_capacity_factor = factor;
    for (int ahead : {0, 2}) {
      std::vector<Step> fixed = train(parallel, kSteps, ahead);
      ASSERT_EQ(fixed.size(), exact.size());
      for (std::size_t i = 0; i < fixed.size(); ++i) {
        EXPECT_EQ(fixed[i].loss, exact[i].loss) << "factor " << factor << ", step " << i;
        EXPECT_EQ(fixed[i].loads, exact[i].loads) << "factor " << factor << ", step " << i;
      }
      int redone = redone_of(fixed);
      EXPECT_TRUE(factor > 1 || redone == kSteps);
      EXPECT_TRUE(factor < 4 || redone == 0);
      some += redone > 0 && redone < kSteps ? 1 : 0;
    }
  }
  EXPECT_GT(some, 0) << "no factor lets some steps pass";
}

// Delayed FP8 scales depend on the amax of earlier steps.
TEST(ExpertOverlap, HistoriesOfLargestNumbersKnowNothingOfADiscardedStep) {
  TinyRun run;
  run.model = with_experts();
  run.model.hidden_size = 32;
  run.model.kv_channels = 16;
  run.model.num_attention_heads = 4;
  run.model.num_query_groups = 2;
  run.dtype = Dtype::kF32;
  run.steps = 4;
  run.parallel = two_by_ep();
  run.fp8.fp8_format = Fp8FormatChoice::kHybrid;
  run.fp8.fp8_recipe = Fp8Scaling::kDelayed;
  LayoutAnswer exact = run_tiny(run);
  run.parallel.moe_expert_rank_capacity_factor = 0.3;
  LayoutAnswer redone = run_tiny(run);
  EXPECT_EQ(exact.losses, redone.losses);
  EXPECT_EQ(largest_difference(exact.weights, redone.weights).value, 0);
}

std::atomic<std::int64_t> fetches{0};
Work counted_fetch(const Stream& stream, const View& from, void* host) {
  ++fetches;
  return cpu_kernels().device.fetch(stream, from, host);
}

// Number of fetches of a step, each of which the host may wait for.
std::int64_t fetches_of(const ParallelConfig& parallel) {
  DeviceKernels device = cpu_kernels().device;
  device.fetch = counted_fetch;
  Kernels kernels = with_table(cpu_kernels(), device);
  std::int64_t found = 0;
  run_thread_ranks(2, {60.0}, [&](World& world) {
    Engine engine(world, kernels, options_of(parallel));
    std::vector<MicroBatch> batches = batches_of(engine, 1);
    world.make_group("both", {0, 1})->barrier("start");
    if (world.rank() == 0) fetches = 0;
    engine.model().mesh().world().barrier("counting");
    engine.begin_step({batches}, {1, 0.02, 0.1, 1.0, 1.0});
    EXPECT_FALSE(engine.finish_step().result.redone);
    engine.model().mesh().world().barrier("counted");
    if (world.rank() == 0) found = fetches;
  });
  return found;
}

TEST(ExpertOverlap, WithFixedSizesTheHostReadsNothingButResults) {
  for (TokenDispatcher dispatcher : {TokenDispatcher::kAllGather, TokenDispatcher::kAllToAll}) {
    ParallelConfig parallel = two_by_ep();
    parallel.moe_token_dispatcher = dispatcher;
    std::int64_t layers = with_experts().num_layers, micro_batches = 8;
    constexpr std::int64_t kResults = 2;  // the metrics, losses and loads alike, of two ranks
    EXPECT_EQ(fetches_of(parallel), kResults + layers * micro_batches);
    parallel.moe_expert_rank_capacity_factor = 4;
    EXPECT_EQ(fetches_of(parallel), kResults);
  }
}

// Events of a step in the trace of a rank: "start" and "end" of exchanges, "F" and "B" of ops, with
// micro-batches, sorted by begin.
struct Happening {
  std::string name;
  std::int64_t micro_batch;
};
std::vector<Happening> traced_step(const ParallelConfig& parallel) {
  std::vector<Happening> out;
  run_thread_ranks(2, {60.0}, [&](World& world) {
    Trace trace(world.rank(), 1, 1);
    EngineOptions options = options_of(parallel);
    options.trace = &trace;
    Engine engine(world, cpu_kernels(), options);
    std::vector<MicroBatch> batches = batches_of(engine, 1);
    {
      StepScope step(&trace, 1);
      engine.train_step(batches, {1, 0.02, 0.1, 1.0, 1.0});
    }
    if (world.rank() != 0) return;
    std::vector<std::pair<std::int64_t, std::int64_t>> actions;  // end and micro-batch, nested
    for (const TraceSpan& span : trace.spans()) {
      const TraceLabel& label = trace.label(span.label);
      while (!actions.empty() && actions.back().first <= span.begin_ns) actions.pop_back();
      if (label.kind == TraceKind::kAction) actions.push_back({span.end_ns, label.number});
      if (actions.empty()) continue;
      out.push_back({concat(name_of(label.kind), " ", label.name), actions.back().second});
    }
  });
  return out;
}

// Counts exchanges of tokens during which GEMMs of another micro-batch run, or, with delayed wgrad,
// its own.
std::int64_t exchanges_over(const std::vector<Happening>& events, const std::string& label,
                            const std::string& work, bool own) {
  std::int64_t found = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (!events[i].name.starts_with("collective") ||
        events[i].name.find(label) == std::string::npos) {
      continue;
    }
    for (std::size_t j = i + 1; j < events.size(); ++j) {
      bool same = events[j].micro_batch == events[i].micro_batch;
      if (same && events[j].name.starts_with("wait") &&
          events[j].name.find(label) != std::string::npos) {
        break;
      }
      if (same != own || events[j].name.find(work) == std::string::npos) continue;
      ++found;
      break;
    }
  }
  return found;
}

TEST(ExpertOverlap, AnotherMicroBatchComputesWhileTokensAreUnderWay) {
  ParallelConfig parallel = two_by_ep();
  parallel.moe_expert_rank_capacity_factor = 4;
  const char* kForward = "expert results";
  const char* kBackward = "gradients for experts";
  std::vector<Happening> plain = traced_step(parallel);
  EXPECT_EQ(exchanges_over(plain, kForward, "grouped_linear", false), 0);
  EXPECT_EQ(exchanges_over(plain, kBackward, "grouped_linear", false), 0);
  parallel.overlap_moe_expert_parallel_comm = true;
  std::vector<Happening> paired = traced_step(parallel);
  // Three of the four forwards are paired with a backward.
  std::int64_t layers = with_experts().num_layers;
  EXPECT_GE(exchanges_over(paired, kForward, "grouped_linear", false), 3 * (layers - 1));
  EXPECT_GE(exchanges_over(paired, kBackward, "grouped_linear", false), 3 * (layers - 1));
  EXPECT_EQ(exchanges_over(paired, "expert gradients", "grouped_linear", true), 0);
  parallel.delay_wgrad_compute = true;
  std::vector<Happening> delayed = traced_step(parallel);
  // Two per layer: tokens and probabilities.
  EXPECT_EQ(exchanges_over(delayed, "expert gradients", "grouped_linear", true), 4 * 2 * layers);
}

}  // namespace
}  // namespace bev::test
