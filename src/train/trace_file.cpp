#include "train/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

namespace bev {

namespace {

constexpr int kHostTrack = 0;
// Tracks of streams follow that of the host.
int stream_track(std::uint32_t stream) { return static_cast<int>(stream) + 1; }

// Name of the number in a label.
const char* number_name(TraceKind kind) {
  switch (kind) {
    case TraceKind::kStep:
      return "iteration";
    case TraceKind::kAction:
      return "micro_batch";
    default:
      return "layer";
  }
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

class Writer {
 public:
  explicit Writer(const RecordedTrace& trace) : trace_(trace) {
    // Timestamps are relative to the first step.
    for (const auto& rank : trace.ranks) {
      if (rank->spans().empty()) continue;
      std::int64_t begin = rank->spans().front().begin_ns;
      begin_ns_ = begin_ns_ == 0 ? begin : std::min(begin_ns_, begin);
    }
  }

  std::string text() {
    for (const auto& rank : trace_.ranks) {
      name_track("process_name", rank->rank(), kHostTrack, fmt::format("rank {}", rank->rank()));
      name_track("thread_name", rank->rank(), kHostTrack, "host");
      add_spans(*rank);
      add_flights(*rank);
      add_memory(*rank);
    }
    add_device();
    return "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n" + events_ + "\n]}\n";
  }

 private:
  double microseconds(std::int64_t ns) const { return static_cast<double>(ns - begin_ns_) / 1e3; }

  void add(const std::string& event) {
    if (!events_.empty()) events_ += ",\n";
    events_ += event;
  }

  void name_track(const char* what, int rank, int track, const std::string& name) {
    add(fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":{}}}}})", what,
                    rank, track, quoted(name)));
  }

  static std::string label_args(const TraceLabel& label) {
    if (label.number < 0) return "";
    return fmt::format(R"("{}":{})", number_name(label.kind), label.number);
  }

  void add_span(int rank, int track, const std::string& name, const char* category,
                const std::string& args, std::int64_t begin_ns, std::int64_t end_ns) {
    add(fmt::format(
        R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
        quoted(name), category, rank, track, microseconds(begin_ns),
        static_cast<double>(end_ns - begin_ns) / 1e3, args));
  }

  void add_spans(const Trace& rank) {
    for (const TraceSpan& span : rank.spans()) {
      const TraceLabel& label = rank.label(span.label);
      add_span(rank.rank(), kHostTrack, label.name, name_of(label.kind), label_args(label),
               span.begin_ns, span.end_ns);
    }
  }

  void add_flights(const Trace& rank) {
    for (const Trace::Flight& flight : rank.flights()) {
      ++flights_;
      auto end = [&](char phase, std::int64_t at_ns) {
        add(fmt::format(
            R"({{"ph":"{}","name":{},"cat":"under way","id":{},"pid":{},"tid":{},"ts":{:.3f}}})",
            phase, quoted(flight.name), flights_, rank.rank(), kHostTrack, microseconds(at_ns)));
      };
      end('b', flight.begin_ns);
      end('e', flight.end_ns);
    }
  }

  // Each event has all tags, so that viewers can stack them.
  void add_memory(const Trace& rank) {
    std::map<const char*, std::size_t> by_literal;
    for (const Trace::MemoryChange& change : rank.memory_changes()) {
      by_literal[change.tag] = change.bytes;
      std::map<std::string, std::size_t> by_tag;
      for (const auto& [tag, bytes] : by_literal) by_tag[tag] += bytes;
      std::string args;
      for (const auto& [tag, bytes] : by_tag) {
        args += fmt::format("{}{}:{}", args.empty() ? "" : ",", quoted(tag), bytes);
      }
      add(fmt::format(R"({{"ph":"C","name":"memory","pid":{},"ts":{:.3f},"args":{{{}}}}})",
                      rank.rank(), microseconds(change.at_ns), args));
    }
  }

  void add_device() {
    std::map<std::uint32_t, int> rank_of_stream;
    for (const DeviceSpan& span : trace_.device) {
      if (span.asked_by != 0) rank_of_stream[span.stream] = TraceId::rank_of(span.asked_by);
    }
    int first = trace_.ranks.empty() ? 0 : trace_.ranks.front()->rank();
    std::map<std::uint32_t, int> named;
    for (const DeviceSpan& span : trace_.device) {
      auto known = rank_of_stream.find(span.stream);
      int rank = known != rank_of_stream.end() ? known->second : first;
      int track = stream_track(span.stream);
      if (named.emplace(span.stream, rank).second) {
        name_track("thread_name", rank, track, fmt::format("stream {}", span.stream));
      }
      const TraceLabel* label = trace_.label(span);
      std::string args;
      if (label != nullptr) {
        args = fmt::format(R"("op":{},"pass":"{}")", quoted(label->name), name_of(label->kind));
        std::string number = label_args(*label);
        if (!number.empty()) args += "," + number;
      }
      add_span(rank, track, span.name, "device", args, span.begin_ns, span.end_ns);
    }
  }

  const RecordedTrace& trace_;
  std::int64_t begin_ns_ = 0;
  std::int64_t flights_ = 0;
  std::string events_;
};

}  // namespace

const TraceLabel* RecordedTrace::label(const DeviceSpan& span) const {
  auto rank = std::ranges::find(ranks, TraceId::rank_of(span.asked_by),
                                [](const auto& trace) { return trace->rank(); });
  return rank != ranks.end() ? &(*rank)->label(TraceId::label_of(span.asked_by)) : nullptr;
}

std::string trace_json(const RecordedTrace& trace) { return Writer(trace).text(); }

}  // namespace bev
