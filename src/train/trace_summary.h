// What a trace says in a few numbers: where the time went, and how much of the communication was
// hidden behind computation.
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
  // Longest first, over all ranks: times on the device where it was recorded, else on the host
  // without what is inside of it.
  std::vector<Row> rows;
  // Of operations between ranks: in all, and while the rank computed something else.
  double communication_seconds = 0, hidden_seconds = 0;
  double step_seconds = 0;  // of all recorded steps of a rank
  std::int64_t steps = 0;
};

TraceSummary summarise(const RecordedTrace& trace);
// The longest rows and the share of communication, in lines.
std::string summary_text(const TraceSummary& summary);

}  // namespace bev
