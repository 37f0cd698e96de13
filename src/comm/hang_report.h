// What every rank was doing when a collective did not finish.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/activity.h"

namespace bev {

struct WaitRecord {
  int rank = 0;  // in the world
  Activity::Snapshot doing;
  // The collective it waits in; empty: it computes, or has ended.
  std::string collective;    // "all_reduce"
  std::string label, group;  // "tp input", "tp"
  std::string data;          // "[4, 8] f32"
  std::vector<int> absent;   // members that have not come
  double seconds = 0;        // since it began to wait
  bool known = true;         // false: nothing is heard of the rank
  bool ended = false;        // its body is over
};

// One line per rank and a last one that names the ranks that nobody's waiting explains: those that
// others miss and that do not wait themselves. Where there are none, ranks wait in a circle.
std::string hang_report(std::span<const WaitRecord> ranks);

// "rank 1, rank 3"
std::string ranks_text(std::span<const int> ranks);

}  // namespace bev
