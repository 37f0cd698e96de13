#include "base/trace.h"

#include "base/clock.h"

namespace bev {

const char* name_of(TraceKind kind) {
  switch (kind) {
    case TraceKind::kStep:
      return "step";
    case TraceKind::kAction:
      return "action";
    case TraceKind::kForward:
      return "forward";
    case TraceKind::kBackward:
      return "backward";
    case TraceKind::kCollective:
      return "collective";
    case TraceKind::kWait:
      return "wait";
    case TraceKind::kOther:
      return "other";
  }
  return "";
}

Trace::Trace(int rank, std::int64_t first, std::int64_t last, TraceWatcher* watcher)
    : rank_(rank), first_(first), last_(last), watcher_(watcher) {}

void Trace::begin_step(std::int64_t iteration) {
  if (!recording_ && iteration >= first_ && iteration <= last_) {
    recording_ = true;
    if (watcher_ != nullptr) watcher_->started();
    for (const auto& [tag, bytes] : memory_) memory(tag, bytes);
  }
  open({TraceKind::kStep, "step", iteration});
}

void Trace::end_step(std::int64_t iteration) {
  close();
  if (!recording_ || iteration < last_) return;
  recording_ = false;
  if (watcher_ != nullptr) watcher_->stopped();
}

void Trace::open(const TraceLabel& label) {
  auto [known, added] = known_labels_.try_emplace({label.kind, label.name, label.number},
                                                  static_cast<std::uint32_t>(labels_.size()));
  if (added) labels_.push_back(label);
  // Also called outside the recorded steps: a CUDA graph captured there may be replayed inside
  // them.
  if (watcher_ != nullptr) watcher_->opened(TraceId::join(rank_, known->second));
  open_.push_back(recording_ ? spans_.size() : kNotRecorded);
  if (!recording_) return;
  std::int64_t now = monotonic_nanoseconds();
  spans_.push_back({known->second, now, now});
}

void Trace::close() {
  std::size_t place = open_.back();
  open_.pop_back();
  if (place != kNotRecorded) spans_[place].end_ns = monotonic_nanoseconds();
  if (watcher_ != nullptr) watcher_->closed();
}

void Trace::flight(const char* name, std::int64_t begin_ns) {
  if (recording_) flights_.push_back({name, begin_ns, monotonic_nanoseconds()});
}

void Trace::memory(const char* tag, std::size_t bytes) {
  memory_[tag] = bytes;
  if (recording_) memory_changes_.push_back({tag, bytes, monotonic_nanoseconds()});
}

}  // namespace bev
