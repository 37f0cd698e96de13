#include "train/trace_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "base/text.h"

namespace bev {

namespace {

double seconds(std::int64_t ns) { return static_cast<double>(ns) / 1e9; }

bool communicates(TraceKind kind) {
  return kind == TraceKind::kCollective || kind == TraceKind::kWait;
}

std::string row_name(const TraceLabel& label) {
  std::string_view name = label.name;
  if (communicates(label.kind)) name = name.substr(0, name.find(' '));  // without the tensor name
  bool op = label.kind == TraceKind::kForward || label.kind == TraceKind::kBackward;
  if (label.kind == TraceKind::kWait) return concat("wait for ", name);
  return op ? concat(name, " ", name_of(label.kind)) : std::string(name);
}

// Disjoint intervals, sorted by begin.
class Intervals {
 public:
  void add(std::int64_t begin, std::int64_t end) {
    if (end > begin) parts_.push_back({begin, end});
    joined_ = false;
  }
  std::int64_t total() {
    std::int64_t sum = 0;
    for (const Part& part : joined()) sum += part.end - part.begin;
    return sum;
  }
  std::int64_t overlap(Intervals& other) {
    std::int64_t sum = 0;
    const std::vector<Part>&mine = joined(), &theirs = other.joined();
    for (std::size_t i = 0, j = 0; i < mine.size() && j < theirs.size();) {
      std::int64_t begin = std::max(mine[i].begin, theirs[j].begin);
      std::int64_t end = std::min(mine[i].end, theirs[j].end);
      sum += std::max<std::int64_t>(end - begin, 0);
      ++(mine[i].end < theirs[j].end ? i : j);
    }
    return sum;
  }

 private:
  struct Part {
    std::int64_t begin, end;
  };
  const std::vector<Part>& joined() {
    if (joined_) return parts_;
    joined_ = true;
    std::ranges::sort(parts_, {}, &Part::begin);
    std::vector<Part> out;
    for (const Part& part : parts_) {
      if (!out.empty() && part.begin <= out.back().end) {
        out.back().end = std::max(out.back().end, part.end);
      } else {
        out.push_back(part);
      }
    }
    parts_ = std::move(out);
    return parts_;
  }
  std::vector<Part> parts_;
  bool joined_ = true;
};

class Summariser {
 public:
  explicit Summariser(const RecordedTrace& trace) : trace_(trace) {}

  TraceSummary result() {
    for (const auto& rank : trace_.ranks) {
      count_steps(*rank);
      if (trace_.device.empty()) add_host(*rank);
    }
    add_device();
    for (auto& [name, row] : rows_) {
      row.name = name;
      out_.rows.push_back(row);
    }
    std::ranges::stable_sort(out_.rows, std::greater(), &TraceSummary::Row::seconds);
    return std::move(out_);
  }

 private:
  void add_row(const std::string& name, std::int64_t ns) {
    TraceSummary::Row& row = rows_[name];
    row.seconds += seconds(ns);
    ++row.count;
  }

  void count_steps(const Trace& rank) {
    std::int64_t steps = 0, ns = 0;
    for (const TraceSpan& span : rank.spans()) {
      if (rank.label(span.label).kind != TraceKind::kStep) continue;
      ++steps;
      ns += span.end_ns - span.begin_ns;
    }
    out_.steps = std::max(out_.steps, steps);
    out_.step_seconds = std::max(out_.step_seconds, seconds(ns));
  }

  // Spans nest, so the exclusive time of a span excludes its children. While a rank posts or waits,
  // it does not compute.
  void add_host(const Trace& rank) {
    const std::vector<TraceSpan>& spans = rank.spans();
    std::vector<std::int64_t> own(spans.size());
    std::vector<std::size_t> open;
    Intervals under_way, exposed;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      own[i] = spans[i].end_ns - spans[i].begin_ns;
      while (!open.empty() && spans[open.back()].end_ns < spans[i].end_ns) open.pop_back();
      if (!open.empty()) own[open.back()] -= own[i];
      open.push_back(i);
      if (communicates(rank.label(spans[i].label).kind)) {
        under_way.add(spans[i].begin_ns, spans[i].end_ns);
        exposed.add(spans[i].begin_ns, spans[i].end_ns);
      }
    }
    for (std::size_t i = 0; i < spans.size(); ++i) {
      add_row(row_name(rank.label(spans[i].label)), own[i]);
    }
    for (const Trace::Flight& flight : rank.flights()) {
      under_way.add(flight.begin_ns, flight.end_ns);
    }
    out_.communication_seconds += seconds(under_way.total());
    out_.hidden_seconds += seconds(under_way.total() - exposed.total());
  }

  void add_device() {
    struct Work {
      Intervals communication, computation;
    };
    std::map<int, Work> by_rank;
    for (const DeviceSpan& span : trace_.device) {
      const TraceLabel* label = trace_.label(span);
      add_row(label != nullptr ? row_name(*label) : "outside of spans",
              span.end_ns - span.begin_ns);
      Work& work = by_rank[TraceId::rank_of(span.asked_by)];
      bool talks = label != nullptr && communicates(label->kind);
      (talks ? work.communication : work.computation).add(span.begin_ns, span.end_ns);
    }
    for (auto& [rank, work] : by_rank) {
      out_.communication_seconds += seconds(work.communication.total());
      out_.hidden_seconds += seconds(work.communication.overlap(work.computation));
    }
  }

  const RecordedTrace& trace_;
  TraceSummary out_;
  std::map<std::string, TraceSummary::Row> rows_;
};

}  // namespace

TraceSummary summarise(const RecordedTrace& trace) { return Summariser(trace).result(); }

std::string summary_text(const TraceSummary& summary) {
  constexpr std::size_t kRows = 10;
  double total = 0;
  for (const TraceSummary::Row& row : summary.rows) total += row.seconds;
  std::string text =
      fmt::format("{} steps in {:.3f} ms; time by op (ms, share, times):", summary.steps,
                  summary.step_seconds * 1e3);
  for (std::size_t i = 0; i < std::min(kRows, summary.rows.size()); ++i) {
    const TraceSummary::Row& row = summary.rows[i];
    text += fmt::format("\n  {:<32} {:>12.3f} {:>6.1f}% {:>8}", row.name, row.seconds * 1e3,
                        total > 0 ? 100 * row.seconds / total : 0, row.count);
  }
  if (summary.communication_seconds > 0) {
    text += fmt::format("\ncommunication {:.3f} ms, {:.1f}% of it behind computation",
                        summary.communication_seconds * 1e3,
                        100 * summary.hidden_seconds / summary.communication_seconds);
  }
  return text;
}

}  // namespace bev
