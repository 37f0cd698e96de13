// Hang report: what every rank was doing when a collective timed out.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/activity.h"

namespace bev {

struct WaitRecord {
  int rank = 0;  // world rank
  Activity::Snapshot doing;
  // The collective the rank waits in; empty: it computes or has finished.
  std::string collective;    // "all_reduce"
  std::string label, group;  // "tp input", "tp"
  std::string data;          // "[4, 8] f32"
  std::vector<int> absent;   // members that have not arrived
  double seconds = 0;        // time since the wait began
  bool known = true;         // false: the rank's process did not answer
  bool ended = false;        // the rank's body has returned
};

// One line per rank, and a last line that names the culprits: ranks that others wait for and that
// wait for nobody. If there are none, it names a cycle of waiting ranks (deadlock).
std::string hang_report(std::span<const WaitRecord> ranks);

// "rank 1, rank 3"
std::string ranks_text(std::span<const int> ranks);

}  // namespace bev
