// Load tests: prompts, arrivals, percentiles, and the numbers of a load.
#include "infer/load_metrics.h"

#include <utility>

#include "infer/progress_line.h"
#include "kernels/device.h"
#include "tests/infer/engine_rig.h"

namespace bev {
namespace {

using namespace test;

TEST(LoadTest, PromptsDependOnSeedAndNumberAndBeginAlike) {
  LoadOptions options{.requests = 4, .input_tokens = 40, .output_tokens = 3};
  options.shared_prefix_tokens = 12;
  Request first = load_request(options, 1000, 0), second = load_request(options, 1000, 1);
  ASSERT_EQ(first.prompt.size(), 40u);
  EXPECT_EQ(first.max_new_tokens, 3);
  EXPECT_TRUE(first.ignore_end);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(first.prompt[i], second.prompt[i]);
  EXPECT_NE(first.prompt, second.prompt);
  EXPECT_EQ(first.prompt, load_request(options, 1000, 0).prompt);
  options.sampling.seed = 5;
  EXPECT_NE(first.prompt, load_request(options, 1000, 0).prompt);
  for (std::int32_t token : load_request(options, 7, 3).prompt) {
    EXPECT_GE(token, 0);
    EXPECT_LT(token, 7);
  }
}

TEST(LoadTest, ArrivalsAreAPoissonProcess) {
  LoadOptions options{.requests = 4001};
  std::vector<double> none = arrival_times(options);
  EXPECT_EQ(std::ranges::max(none), 0);
  options.rate = 8;
  std::vector<double> times = arrival_times(options);
  EXPECT_EQ(times.front(), 0);
  EXPECT_TRUE(std::ranges::is_sorted(times));
  // Mean and standard deviation of the gaps are both 1 / rate.
  double squares = 0;
  for (std::size_t i = 1; i < times.size(); ++i) squares += std::pow(times[i] - times[i - 1], 2);
  EXPECT_NEAR(times.back() / 4000, 0.125, 0.01);
  EXPECT_NEAR(squares / 4000 - 0.125 * 0.125, 0.125 * 0.125, 0.002);
}

TEST(LoadTest, PercentilesInterpolate) {
  EXPECT_FALSE(percentiles_of({}).has_value());
  EXPECT_EQ(*percentiles_of({3}), (Percentiles{3, 3, 3}));
  Percentiles values = *percentiles_of({4, 1, 3, 2, 0});
  EXPECT_DOUBLE_EQ(values[0], 2);
  EXPECT_DOUBLE_EQ(values[1], 3.6);
  EXPECT_DOUBLE_EQ(values[2], 3.96);
}

// Tokens that come each 10 ms from `first` on.
RequestRecord record_of(double arrival, double first, std::int64_t tokens) {
  RequestRecord record;
  record.arrival = arrival;
  record.completed = true;
  for (std::int64_t i = 0; i < tokens; ++i) {
    record.token_times.push_back(first + 0.01 * static_cast<double>(i));
  }
  return record;
}

TEST(LoadTest, MetricsFollowFromTheTimesOfTokens) {
  LoadOptions options{.requests = 3, .input_tokens = 5, .output_tokens = 21};
  LoadResult result;
  result.requests = {record_of(0, 0.1, 21), record_of(0, 0.12, 21), record_of(0, 0.15, 7)};
  result.requests[2].completed = false;
  result.requests[0].cached_tokens = 4;
  LoadMetrics metrics = load_metrics(options, result, {.ttft_ms = 110});
  EXPECT_EQ(metrics.completed, 2);
  EXPECT_EQ(metrics.failed, 1);
  EXPECT_EQ(metrics.input_tokens, 10);
  EXPECT_EQ(metrics.output_tokens, 49);
  EXPECT_EQ(metrics.cached_tokens, 4);
  EXPECT_NEAR(metrics.duration_s, 0.32, 1e-9);
  EXPECT_NEAR(metrics.output_tok_s, 49 / 0.32, 1e-6);
  EXPECT_NEAR((*metrics.ttft_ms)[0], 110, 1e-6);
  EXPECT_NEAR((*metrics.itl_ms)[2], 10, 1e-6);
  EXPECT_NEAR((*metrics.tpot_ms)[1], 10, 1e-6);
  EXPECT_NEAR((*metrics.e2e_ms)[0], 310, 1e-6);
  EXPECT_NEAR(metrics.goodput_rps, 1 / 0.32, 1e-6);
  EXPECT_FALSE(metrics.decode_tok_s.has_value());  // not all completed

  result.requests.pop_back();
  EXPECT_NEAR(load_metrics(options, result, {.itl_ms = 11}).goodput_rps, 2 / 0.32, 1e-6);
  EXPECT_EQ(load_metrics(options, result, {.itl_ms = 9}).goodput_rps, 0);
  metrics = load_metrics(options, result, {});
  // From 0.27 on: 3 and 5 tokens; both run for 0.03 s.
  ASSERT_TRUE(metrics.decode_tok_s.has_value());
  EXPECT_NEAR(*metrics.decode_tok_s, 8 / 0.05, 1e-6);
  EXPECT_NEAR(*metrics.full_batch_tok_s, 6 / 0.03, 1e-6);
  options.concurrency = 2;
  EXPECT_FALSE(load_metrics(options, result, {}).decode_tok_s.has_value());
}

TEST(LoadTest, IdleTimeIsThatWithoutAnySpan) {
  auto span = [](std::int64_t begin, std::int64_t end) {
    DeviceSpan out;
    out.begin_ns = begin, out.end_ns = end;
    return out;
  };
  EXPECT_FALSE(idle_of({}, 2).has_value());
  // The second runs while the first does; gaps of 5, 10 and 25.
  DeviceIdle idle =
      *idle_of({span(100, 140), span(110, 120), span(145, 150), span(160, 165), span(190, 200)}, 2);
  EXPECT_DOUBLE_EQ(idle.share, 0.4);
  EXPECT_DOUBLE_EQ(idle.between_steps, 0.35);
}

TEST(LoadTest, ProgressSaysWhatIsLeft) {
  EXPECT_EQ(progress_text("rows", 250, 1000, 5000, 10),
            "250 of 1000 rows, 25%, 500 tokens/s, 30s left");
}

void expect_load(const Case& test_case, const LoadOptions& options) {
  SCOPED_TRACE(concat("tp ", test_case.tp, " pp ", test_case.pp, " dp ", test_case.dp, " rate ",
                      options.rate, " concurrency ", options.concurrency));
  with_engine(test_case, [&](Engine& engine) {
    std::vector<Request> like(static_cast<std::size_t>(options.requests),
                              load_request(options, test_case.model.vocab_size, 0));
    InferenceEngine inference(engine.model(), options_for(like, {.block_tokens = 4}));
    warm_up_load(inference, options, 3);
    LoadResult result = run_load(inference, options, true);
    EXPECT_FALSE(trace_device_idle(inference, options).has_value());
    EXPECT_EQ(inference.blocks().used, 0);
    if (engine.model().mesh().world().rank() != 0) return;
    ASSERT_EQ(std::ssize(result.requests), options.requests);
    for (const RequestRecord& record : result.requests) {
      EXPECT_TRUE(record.completed);
      EXPECT_EQ(std::ssize(record.token_times), options.output_tokens);
      EXPECT_TRUE(std::ranges::is_sorted(record.token_times));
      EXPECT_LE(record.arrival, record.token_times.front());
    }
    EXPECT_EQ(result.statistics.tokens_generated, options.requests * options.output_tokens);
    EXPECT_GE(result.statistics.steps, options.output_tokens);
    LoadMetrics metrics = load_metrics(options, result, {});
    EXPECT_EQ(metrics.completed, options.requests);
    EXPECT_EQ(metrics.cached_tokens > 0, options.shared_prefix_tokens >= 4 && !options.closed());
  });
}

TEST(LoadTest, LayoutsAndArrivalsGiveEveryRequestItsTokens) {
  Case one{tiny_llama()}, tp = one, pp = one, dp = one;
  tp.tp = 2, pp.pp = 2, dp.dp = 2;
  LoadOptions options{.requests = 7, .input_tokens = 9, .output_tokens = 6};
  for (const Case& layout : {one, tp, pp, dp}) {
    expect_load(layout, options);
    LoadOptions few = options;
    few.concurrency = 2;
    few.shared_prefix_tokens = 8;
    expect_load(layout, few);
    LoadOptions paced = options;
    paced.rate = 500;
    expect_load(layout, paced);
  }
}

// A trace with a span of 6 ns every 10 ns, of which the load asks for 8 steps.
class FakeTrace : public DeviceTrace {
 public:
  void opened(std::uint64_t) override {}
  void closed() override {}
  void started() override { EXPECT_FALSE(std::exchange(records_, true)); }
  void stopped() override { EXPECT_TRUE(std::exchange(records_, false)); }
  std::vector<DeviceSpan> take() override {
    EXPECT_FALSE(records_);
    std::vector<DeviceSpan> spans(8);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      spans[i].begin_ns = static_cast<std::int64_t>(10 * i);
      spans[i].end_ns = spans[i].begin_ns + 6;
    }
    return spans;
  }

 private:
  bool records_ = false;
};

TEST(LoadTest, TracesStepsOfAllSequences) {
  DeviceKernels device = cpu_kernels().device;
  device.trace = []() -> std::unique_ptr<DeviceTrace> { return std::make_unique<FakeTrace>(); };
  Kernels kernels = with_table(cpu_kernels(), device);
  Case test_case{tiny_llama()};
  test_case.kernels = &kernels;
  LoadOptions options{.requests = 5, .input_tokens = 7, .output_tokens = 20};
  with_engine(test_case, [&](Engine& engine) {
    std::vector<Request> like(5, load_request(options, test_case.model.vocab_size, 0));
    InferenceOptions limits = options_for(like, {.max_step_tokens = 8, .block_tokens = 4});
    limits.wanted_tokens *= 2;
    InferenceEngine inference(engine.model(), limits);
    std::optional<DeviceIdle> idle = trace_device_idle(inference, options);
    ASSERT_TRUE(idle.has_value());
    EXPECT_DOUBLE_EQ(idle->share, 28.0 / 76);
    EXPECT_EQ(inference.blocks().used, 0);
    EXPECT_EQ(inference.running() + inference.waiting(), 0);
    // Too short for as many steps.
    options.output_tokens = 6;
    EXPECT_FALSE(trace_device_idle(inference, options).has_value());
  });
}

}  // namespace
}  // namespace bev
