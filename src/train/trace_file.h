// Writes a trace in Chrome's trace event format for Perfetto and chrome://tracing: one process per
// rank, with host spans, collectives in flight, device streams, and memory by tag.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/trace.h"

namespace bev {

struct RecordedTrace {
  std::vector<std::unique_ptr<Trace>> ranks;  // ranks of this process, in order
  std::vector<DeviceSpan> device;

  // Label of the host span that launched a device span; null if unknown.
  const TraceLabel* label(const DeviceSpan& span) const;
};

std::string trace_json(const RecordedTrace& trace);

}  // namespace bev
