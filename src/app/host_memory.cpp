#include "app/host_memory.h"

#include "app/dry_run.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "plan/memory.h"

namespace bev {

void check_host_memory(const RunConfig& run, const Launch& launch) {
  if (!run.parallel.offload.any()) return;
  MemoryPlan plan = planned_memory(run);
  double needed = 0;
  auto ranks = static_cast<std::int64_t>(plan.ranks.size()) / launch.processes;
  for (std::int64_t i = 0; i < ranks; ++i) {
    auto rank = static_cast<std::size_t>(launch.process * ranks + i);
    needed += static_cast<double>(plan.ranks[rank].host_activations);
  }
  needed *= static_cast<double>(launch.local_processes);
  double there = free_host_memory();
  BEV_CHECK(there == 0 || needed <= there, ErrorKind::kConfig, "offloaded activations need ",
            format_bytes(needed), " of this machine's host memory, of which ", format_bytes(there),
            " are free; offload fewer layers or parts (--cpu-offloading-num-layers, "
            "--offload-modules, --activation-offload-fraction)");
}

}  // namespace bev
