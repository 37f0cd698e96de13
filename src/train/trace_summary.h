// Summary of a trace: time by op, and how much of the communication overlapped with computation.
#pragma once

#include <string>
#include <vector>

#include "train/trace_file.h"

namespace bev {

struct TraceSummary {
  struct Row {
    std::string name;  // "linear backward"
    double seconds = 0;
    std::int64_t count = 0;
  };
  // Sorted by time over all ranks: device time if it was traced, else exclusive host time.
  std::vector<Row> rows;
  // Time of collectives and point-to-point transfers: total, and overlapped with computation.
  double communication_seconds = 0, hidden_seconds = 0;
  double step_seconds = 0;  // of all traced steps of a rank
  std::int64_t steps = 0;
};

TraceSummary summarise(const RecordedTrace& trace);
// Formats the longest rows and the share of overlapped communication.
std::string summary_text(const TraceSummary& summary);

}  // namespace bev
