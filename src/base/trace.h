// Profiler trace of one rank for a few steps: nested spans, collectives in flight, and memory by
// tag. A rank that is not traced has a null pointer, which costs one comparison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace bev {

enum class TraceKind : std::uint8_t {
  kStep,        // number = iteration
  kAction,      // action of the pipeline schedule, number = micro-batch
  kForward,     // forward of an op, number = layer
  kBackward,    // backward of an op, number = layer
  kCollective,  // a collective or message is posted
  kWait,        // waiting for a posted operation
  kOther,       // data loading, optimizer, gradient reduction
};
const char* name_of(TraceKind kind);

// Label of a span. `name` is a literal or a string kept by the trace.
struct TraceLabel {
  TraceKind kind = TraceKind::kOther;
  const char* name = "";
  std::int64_t number = -1;  // see TraceKind; -1: none
};

struct TraceSpan {
  std::uint32_t label = 0;
  std::int64_t begin_ns = 0, end_ns = 0;
};

// Rank and label index in one 64-bit word, used as correlation id.
struct TraceId {
  static std::uint64_t join(int rank, std::uint32_t label) {
    return (static_cast<std::uint64_t>(rank) + 1) << 32 | label;
  }
  static int rank_of(std::uint64_t id) { return static_cast<int>(id >> 32) - 1; }  // -1 for id 0
  static std::uint32_t label_of(std::uint64_t id) { return static_cast<std::uint32_t>(id); }
};

// A kernel or copy that the device ran on one of its streams.
struct DeviceSpan {
  std::string name;
  std::uint64_t asked_by = 0;  // TraceId of the innermost span that launched it; 0: unknown
  std::uint32_t stream = 0;
  std::int64_t begin_ns = 0, end_ns = 0;
};

// Observer of the spans of all ranks, called on their threads, and of the recorded steps.
class TraceWatcher {
 public:
  virtual ~TraceWatcher() = default;
  virtual void opened(std::uint64_t id) = 0;
  virtual void closed() = 0;
  virtual void started() = 0;  // called by each rank
  virtual void stopped() = 0;
};

// Recorder of one rank; used by the rank's own thread only.
class Trace {
 public:
  // Records iterations first..last, inclusive; `watcher` may be null.
  Trace(int rank, std::int64_t first, std::int64_t last, TraceWatcher* watcher = nullptr);

  void begin_step(std::int64_t iteration);
  void end_step(std::int64_t iteration);
  void open(const TraceLabel& label);
  void close();
  // Records that an operation posted at `begin_ns` has finished.
  void flight(const char* name, std::int64_t begin_ns);
  // Records that `tag` (a literal) of the rank's memory now has `bytes` bytes.
  void memory(const char* tag, std::size_t bytes);
  // Copies a string; the copy lives as long as the trace.
  const char* keep(std::string_view text) { return names_.emplace(text).first->c_str(); }

  struct Flight {
    const char* name;
    std::int64_t begin_ns, end_ns;
  };
  struct MemoryChange {
    const char* tag;
    std::size_t bytes;
    std::int64_t at_ns;
  };
  int rank() const { return rank_; }
  bool recording() const { return recording_; }
  const TraceLabel& label(std::uint32_t index) const { return labels_[index]; }
  std::size_t label_count() const { return labels_.size(); }
  const std::vector<TraceSpan>& spans() const { return spans_; }  // ordered by begin
  const std::vector<Flight>& flights() const { return flights_; }
  const std::vector<MemoryChange>& memory_changes() const { return memory_changes_; }

 private:
  static constexpr std::size_t kNotRecorded = ~std::size_t{0};

  int rank_;
  std::int64_t first_, last_;
  TraceWatcher* watcher_;
  bool recording_ = false;
  std::map<std::tuple<TraceKind, std::string_view, std::int64_t>, std::uint32_t> known_labels_;
  std::vector<TraceLabel> labels_;
  std::vector<TraceSpan> spans_;
  std::vector<std::size_t> open_;  // indices into spans_, innermost last
  std::vector<Flight> flights_;
  std::map<const char*, std::size_t> memory_;
  std::vector<MemoryChange> memory_changes_;
  std::set<std::string, std::less<>> names_;
};

// RAII span; a null trace records nothing.
class TraceScope {
 public:
  TraceScope(Trace* trace, const TraceLabel& label) : trace_(trace) {
    if (trace_ != nullptr) trace_->open(label);
  }
  ~TraceScope() {
    if (trace_ != nullptr) trace_->close();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace* trace_;
};

// RAII step; a null trace records nothing.
class StepScope {
 public:
  StepScope(Trace* trace, std::int64_t iteration) : trace_(trace), iteration_(iteration) {
    if (trace_ != nullptr) trace_->begin_step(iteration_);
  }
  ~StepScope() {
    if (trace_ != nullptr) trace_->end_step(iteration_);
  }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  Trace* trace_;
  std::int64_t iteration_;
};

}  // namespace bev
