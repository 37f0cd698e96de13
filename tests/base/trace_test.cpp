#include "base/trace.h"

#include <gtest/gtest.h>

namespace bev {
namespace {

struct Watcher : TraceWatcher {
  void opened(std::uint64_t id) override { open.push_back(id); }
  void closed() override { open.pop_back(); }
  void started() override { ++starts; }
  void stopped() override { ++stops; }
  std::vector<std::uint64_t> open;
  int starts = 0, stops = 0;
};

TEST(Trace, RecordsTheStepsOfItsWindowOnly) {
  Watcher watcher;
  Trace trace(3, 2, 3, &watcher);
  for (int iteration = 1; iteration <= 5; ++iteration) {
    StepScope step(&trace, iteration);
    EXPECT_EQ(trace.recording(), iteration == 2 || iteration == 3);
    TraceScope span(&trace, {TraceKind::kForward, "linear", 7});
    EXPECT_EQ(watcher.open.size(), 2u) << "a watcher is told of all spans";
    EXPECT_EQ(TraceId::rank_of(watcher.open.back()), 3);
    EXPECT_STREQ(trace.label(TraceId::label_of(watcher.open.back())).name, "linear");
  }
  ASSERT_EQ(trace.spans().size(), 4u);
  EXPECT_EQ(trace.label(trace.spans()[2].label).number, 3);
  EXPECT_EQ(trace.spans()[1].label, trace.spans()[3].label);
  EXPECT_EQ(watcher.starts, 1);
  EXPECT_EQ(watcher.stops, 1);
}

TEST(Trace, SpansNest) {
  Trace trace(0, 1, 1);
  {
    StepScope step(&trace, 1);
    for (int i = 0; i < 3; ++i) {
      TraceScope outer(&trace, {TraceKind::kAction, "forward", i});
      TraceScope inner(&trace, {TraceKind::kForward, "norm", 0});
    }
  }
  const std::vector<TraceSpan>& spans = trace.spans();
  ASSERT_EQ(spans.size(), 7u);
  for (std::size_t i = 1; i < spans.size(); ++i) {
    EXPECT_GE(spans[i].begin_ns, spans[i - 1].begin_ns);
    EXPECT_LE(spans[i].end_ns, spans[0].end_ns);
    if (i % 2 == 0) {
      EXPECT_LE(spans[i].end_ns, spans[i - 1].end_ns);
    }
  }
}

TEST(Trace, MemoryBeginsWithWhatThereWas) {
  Trace trace(0, 2, 2);
  trace.memory("weights", 100);
  {
    StepScope step(&trace, 1);
    trace.memory("activations", 10);
  }
  {
    StepScope step(&trace, 2);
    trace.memory("activations", 30);
  }
  trace.memory("activations", 0);
  std::map<std::string, std::size_t> last;
  for (const auto& change : trace.memory_changes()) last[change.tag] = change.bytes;
  EXPECT_EQ(last, (std::map<std::string, std::size_t>{{"activations", 30}, {"weights", 100}}));
  EXPECT_EQ(trace.memory_changes().size(), 3u);
}

TEST(Trace, KeptNamesStay) {
  Trace trace(0, 1, 1);
  const char* name = trace.keep("all_reduce " + std::string(40, 'x'));
  for (int i = 0; i < 1000; ++i) trace.keep(std::to_string(i));
  EXPECT_EQ(name, trace.keep("all_reduce " + std::string(40, 'x')));
}

TEST(Trace, NoTraceIsNoSpan) {
  StepScope step(nullptr, 1);
  TraceScope span(nullptr, {TraceKind::kForward, "linear", 7});
}

}  // namespace
}  // namespace bev
