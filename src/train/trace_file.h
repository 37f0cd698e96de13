// A trace as Chrome's trace event format, which Perfetto and chrome://tracing show: one process per
// rank, in it the host's spans, operations between ranks under way, the device's streams, and
// memory by tag.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/trace.h"

namespace bev {

struct RecordedTrace {
  std::vector<std::unique_ptr<Trace>> ranks;  // of this process, in rank order
  std::vector<DeviceSpan> device;

  // The label of what asked for a span of the device; null where it is not known.
  const TraceLabel* label(const DeviceSpan& span) const;
};

std::string trace_json(const RecordedTrace& trace);

}  // namespace bev
