// Traces of training steps on thread ranks: their contents and correctness.
#include "base/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "backend/cpu/cpu_kernels.h"
#include "comm/world.h"
#include "parallel/engine.h"
#include "tests/support/layouts.h"
#include "train/trace_summary.h"

namespace bev {
namespace {

using nlohmann::json;

struct Traced {
  RecordedTrace trace;
  std::vector<std::size_t> peaks;  // of the traced step, by rank
};

// Two steps, the second one traced.
Traced train(const ParallelConfig& parallel) {
  auto ranks = static_cast<int>(mesh_shape(parallel).size());
  Traced out;
  out.peaks.resize(static_cast<std::size_t>(ranks));
  for (int i = 0; i < ranks; ++i) out.trace.ranks.push_back(std::make_unique<Trace>(i, 2, 2));
  run_thread_ranks(ranks, {120.0}, [&](World& world) {
    auto rank = static_cast<std::size_t>(world.rank());
    EngineOptions options;
    options.model = test::tiny_llama();
    options.parallel = parallel;
    options.trace = out.trace.ranks[rank].get();
    Engine engine(world, cpu_kernels(), options);
    std::vector<MicroBatch> batches = rank_micro_batches(
        engine.model().ctx(), random_samples(options.model.vocab_size, 8, 16, 5), 2);
    for (int iteration = 1; iteration <= 2; ++iteration) {
      engine.model().rank().arena().reset_peak();
      StepScope step(options.trace, iteration);
      engine.train_step(batches, {iteration, 1e-3, 0.1, 1.0, 1.0});
    }
    out.peaks[rank] = engine.model().rank().arena().peak() + engine.model().rank().inputs().peak();
  });
  return out;
}

ParallelConfig layout(std::int64_t tp, std::int64_t pp, std::int64_t dp) {
  ParallelConfig parallel;
  parallel.tensor_model_parallel_size = tp;
  parallel.pipeline_model_parallel_size = pp;
  parallel.data_parallel_size = dp;
  return parallel;
}

// (category, name, layer)
using Seen = std::set<std::tuple<std::string, std::string, int>>;

// Every span of a track is nested in an earlier one or follows it.
void expect_nested(const std::vector<json>& track) {
  std::vector<double> ends;
  for (const json& span : track) {
    double begin = span["ts"], end = begin + span["dur"].get<double>();
    while (!ends.empty() && ends.back() <= begin) ends.pop_back();
    constexpr double kRounding = 0.002;  // timestamps have three decimals in microseconds
    if (!ends.empty()) {
      ASSERT_LE(end, ends.back() + kRounding) << span;
    }
    ends.push_back(end);
  }
}

TEST(Trace, HasEveryOpOfEveryLayerOnEveryRank) {
  Traced traced = train(layout(2, 1, 2));
  json file = json::parse(trace_json(traced.trace));
  std::map<int, std::vector<json>> tracks;
  std::map<int, Seen> seen;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] != "X") continue;
    int rank = event["pid"];
    tracks[rank].push_back(event);
    seen[rank].emplace(event["cat"], event["name"], event["args"].value("layer", -1));
  }
  ASSERT_EQ(tracks.size(), 4u);
  auto layers = static_cast<int>(test::tiny_llama().num_layers);
  for (int rank = 0; rank < 4; ++rank) {
    SCOPED_TRACE(rank);
    expect_nested(tracks[rank]);
    EXPECT_EQ(tracks[rank].front()["name"], "step");
    EXPECT_EQ(tracks[rank].front()["args"]["iteration"], 2);
    for (int layer = 0; layer < layers; ++layer) {
      for (const char* pass : {"forward", "backward"}) {
        EXPECT_TRUE(seen[rank].contains({pass, "attention", layer})) << pass << layer;
        EXPECT_TRUE(seen[rank].contains({pass, "activation", layer})) << pass << layer;
      }
    }
    EXPECT_TRUE(seen[rank].contains({"forward", "lm_head_loss", -1}));
    EXPECT_TRUE(seen[rank].contains({"other", "optimizer", -1}));
    EXPECT_TRUE(seen[rank].contains({"action", "forward", -1}));
    EXPECT_TRUE(seen[rank].contains({"collective", "all_reduce tp output", -1}));
    EXPECT_TRUE(seen[rank].contains({"wait", "all_reduce tp output", -1}));
  }
}

TEST(Trace, MemoryReachesTheArenasPeak) {
  Traced traced = train(layout(1, 2, 1));
  json file = json::parse(trace_json(traced.trace));
  std::vector<std::size_t> peaks(traced.peaks.size());
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] != "C") continue;
    std::size_t sum = 0;
    for (const auto& [tag, bytes] : event["args"].items()) sum += bytes.get<std::size_t>();
    std::size_t& peak = peaks[event["pid"].get<std::size_t>()];
    peak = std::max(peak, sum);
  }
  EXPECT_EQ(peaks, traced.peaks);
}

TEST(Trace, WeightGradientsThatArePutOffKeepTheirOpAndLayer) {
  ParallelConfig parallel = layout(1, 2, 1);
  parallel.pipeline_schedule = PipelineSchedule::kZeroBubbleH1;
  Traced traced = train(parallel);
  Seen under_weights;
  for (const auto& rank : traced.trace.ranks) {
    std::int64_t until = 0;
    for (const TraceSpan& span : rank->spans()) {
      const TraceLabel& label = rank->label(span.label);
      bool action = label.kind == TraceKind::kAction;
      if (action) until = std::string_view(label.name) == "backward weight" ? span.end_ns : 0;
      if (!action && span.end_ns <= until) {
        under_weights.emplace(name_of(label.kind), label.name, static_cast<int>(label.number));
      }
    }
  }
  EXPECT_TRUE(under_weights.contains({"backward", "column_parallel", 0}))
      << testing::PrintToString(under_weights);
}

TEST(Trace, TheSummaryAddsUpToTheSteps) {
  Traced traced = train(layout(1, 1, 2));
  TraceSummary summary = summarise(traced.trace);
  double sum = 0;
  for (const TraceSummary::Row& row : summary.rows) sum += row.seconds;
  EXPECT_EQ(summary.steps, 1);
  EXPECT_GT(summary.communication_seconds, 0);
  EXPECT_GE(summary.communication_seconds, summary.hidden_seconds);
  EXPECT_LE(sum, 2 * summary.step_seconds);
  EXPECT_GT(sum, summary.step_seconds);
}

}  // namespace
}  // namespace bev
