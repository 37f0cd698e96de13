// World of several processes: each hosts some ranks as threads, and a Link connects the processes.
// World rank = process x ranks per process + thread.
#pragma once

#include "comm/process/link.h"
#include "comm/process/mailroom.h"
#include "comm/world.h"

namespace bev {

struct ProcessWorldOptions {
  Settings settings;             // must be equal in all processes, or the run is refused
  int ranks = 1;                 // threads per process, equal in all processes
  double timeout_seconds = 600;  // per collective
  // Called when the run has failed, while ranks of this process may still be computing; it may exit
  // the process. If it returns (or is null), the failure is thrown after they have ended.
  void (*failed)(const RankFailure& failure, Link& link) = nullptr;
};

// Runs body(world) on the ranks of this process and returns when those of all processes have
// finished. If a rank of any process throws, all are woken and the first cause is thrown
// everywhere.
void run_process_ranks(Link& link, const ProcessWorldOptions& options,
                       FunctionRef<void(World& world)> body);

}  // namespace bev
