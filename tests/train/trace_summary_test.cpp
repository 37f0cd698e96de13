#include "train/trace_summary.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/device.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "train/profile.h"

namespace bev {
namespace {

using nlohmann::json;

// One step of a rank: a linear of layer 4, and a collective inside it.
std::unique_ptr<Trace> record(int rank) {
  auto trace = std::make_unique<Trace>(rank, 1, 1);
  StepScope step(trace.get(), 1);
  TraceScope op(trace.get(), {TraceKind::kForward, "linear", 4});
  TraceScope post(trace.get(), {TraceKind::kCollective, "all_reduce \"sum\"\\"});
  return trace;
}

// `label` indexes the labels of `record` in the order of their opening.
DeviceSpan device(int rank, std::uint32_t label, std::uint32_t stream, std::int64_t begin_us,
                  std::int64_t end_us) {
  return {"kernel<float>", TraceId::join(rank, label), stream, begin_us * 1000, end_us * 1000};
}

const TraceSummary::Row* find_row(const TraceSummary& summary, const std::string& name) {
  auto found = std::ranges::find(summary.rows, name, &TraceSummary::Row::name);
  return found != summary.rows.end() ? &*found : nullptr;
}

TEST(TraceSummary, CommunicationBehindComputationIsHidden) {
  RecordedTrace trace;
  trace.ranks.push_back(record(0));
  trace.ranks.push_back(record(1));
  // Rank 0: 10 us of communication, 6 of them overlapped by kernels that overlap each other. Rank 1
  // computes at the same time, which hides nothing of rank 0.
  trace.device = {device(0, 1, 7, 0, 4),   device(0, 1, 8, 2, 6),  device(0, 2, 9, 0, 10),
                  device(0, 1, 7, 20, 30), device(1, 1, 5, 0, 10), {"x", 0, 1, 0, 5000}};
  TraceSummary summary = summarise(trace);
  EXPECT_NEAR(summary.communication_seconds, 10e-6, 1e-12);
  EXPECT_NEAR(summary.hidden_seconds, 6e-6, 1e-12);
  ASSERT_NE(find_row(summary, "linear forward"), nullptr);
  EXPECT_NEAR(find_row(summary, "linear forward")->seconds, 28e-6, 1e-12);
  EXPECT_EQ(find_row(summary, "linear forward")->count, 4);
  EXPECT_NEAR(find_row(summary, "all_reduce")->seconds, 10e-6, 1e-12);
  EXPECT_EQ(find_row(summary, "outside of spans")->count, 1);
  EXPECT_EQ(summary.rows.front().name, "linear forward");
  EXPECT_NE(summary_text(summary).find("60.0% of it behind computation"), std::string::npos);
}

TEST(TraceSummary, OnTheHostWhatIsNotWaitedForIsHidden) {
  RecordedTrace recorded;
  recorded.ranks.push_back(std::make_unique<Trace>(0, 1, 1));
  Trace& trace = *recorded.ranks.front();
  std::int64_t posted_ns = 0;
  {
    StepScope step(&trace, 1);
    { TraceScope post(&trace, {TraceKind::kCollective, "all_reduce x"}); }
    posted_ns = trace.spans().back().begin_ns;
    {
      TraceScope op(&trace, {TraceKind::kBackward, "linear", 0});
      volatile double sum = 0;
      for (int i = 0; i < 1000000; ++i) sum = sum + i;
    }
    { TraceScope wait(&trace, {TraceKind::kWait, "all_reduce x"}); }
    trace.flight("all_reduce x", posted_ns);
  }
  TraceSummary summary = summarise(recorded);
  double inside = find_row(summary, "linear backward")->seconds;
  EXPECT_GE(summary.hidden_seconds, inside);
  EXPECT_GT(summary.communication_seconds, summary.hidden_seconds);
  double own = 0;
  for (const TraceSummary::Row& row : summary.rows) own += row.seconds;
  EXPECT_NEAR(own, summary.step_seconds, 1e-9) << "own times add up to the step";
}

TEST(TraceFile, IsJsonWithOneProcessPerRankAndOneTrackPerStream) {
  RecordedTrace trace;
  trace.ranks.push_back(record(0));
  trace.ranks.push_back(record(1));
  trace.ranks.front()->flight("never", 0);  // no longer traced
  trace.device = {device(1, 1, 7, 0, 4), device(1, 2, 8, 2, 6), {"alone", 0, 8, 9000, 10000}};
  json file = json::parse(trace_json(trace));
  std::map<std::pair<int, int>, int> spans;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++spans[{event["pid"], event["tid"]}];
    if (event["cat"] != "device" || event["name"] == "alone") continue;
    EXPECT_EQ(event["args"]["op"], event["tid"] == 8 ? "linear" : "all_reduce \"sum\"\\");
    if (event["tid"] == 8) {
      EXPECT_EQ(event["args"]["layer"], 4);
    }
  }
  // A span of unknown origin belongs to the rank of its stream.
  EXPECT_EQ(spans, (std::map<std::pair<int, int>, int>{
                       {{0, 0}, 3}, {{1, 0}, 3}, {{1, 8}, 1}, {{1, 9}, 2}}));
}

TEST(Profile, OtherProcessesHaveFilesOfTheirOwn) {
  EXPECT_EQ(trace_path("a/trace.json", 0), "a/trace.json");
  EXPECT_EQ(trace_path("a/trace.json", 8), "a/trace.rank8.json");
  EXPECT_EQ(trace_path("a.b/trace", 2), "a.b/trace.rank2");
  EXPECT_EQ(trace_path(".trace", 2), ".trace.rank2");
}

TEST(Profile, AFileThatCannotBeIsAnErrorAtOnce) {
  TempFolder folder;
  std::string file = folder.write("file", "");
  ProfileConfig config;
  config.profile_trace = file + "/trace.json";
  expect_error(ErrorKind::kConfig, {file}, [&] { Profile(config, 0, 1, nullptr); });
}

TEST(Profile, AWindowMustBeInTheRun) {
  ProfileConfig config;
  TrainConfig train;
  train.train_iters = 5;
  EXPECT_TRUE(config.problems(train).empty()) << "nothing is asked for";
  config.profile_trace = "trace.json";
  ASSERT_EQ(config.problems(train).size(), 1u);
  EXPECT_NE(config.problems(train)[0].find("--train-iters is 5"), std::string::npos);
  config.profile_step_start = 4;
  EXPECT_TRUE(config.problems(train).empty());
  config.profile_step_end = 4;
  EXPECT_EQ(config.problems(train).size(), 1u);
}

}  // namespace
}  // namespace bev
