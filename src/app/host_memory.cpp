#include "app/host_memory.h"

#include "app/dry_run.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "base/text.h"
#include "plan/memory.h"

namespace bev {

void check_host_memory(const RunConfig& run, const Launch& launch) {
  bool activations = run.parallel.offload.any(), state = run.optim.offloaded_fraction() > 0;
  if (!activations && !state) return;
  MemoryPlan plan = planned_memory(run);
  double needed = 0;
  auto ranks = static_cast<std::int64_t>(plan.ranks.size()) / launch.processes;
  for (std::int64_t i = 0; i < ranks; ++i) {
    auto rank = static_cast<std::size_t>(launch.process * ranks + i);
    needed += static_cast<double>(plan.ranks[rank].host());
  }
  needed *= static_cast<double>(launch.local_processes);
  double there = free_host_memory();
  if (there == 0 || needed <= there) return;
  std::string cure;
  if (activations) {
    cure +=
        "; offload fewer layers or parts (--cpu-offloading-num-layers, --offload-modules, "
        "--activation-offload-fraction)";
  }
  if (state) {
    cure +=
        concat("; lower --optimizer-offload-fraction (now ", run.optim.optimizer_offload_fraction,
               "), keep moments in fewer bits (--exp-avg-dtype fp8 --exp-avg-sq-dtype fp8) or, "
               "with --bf16, no main parameters (--main-params-dtype bf16), or spread them over "
               "more ranks (--use-distributed-optimizer)");
  }
  BEV_FAIL(ErrorKind::kConfig, "what is offloaded needs ", format_bytes(needed),
           " of this machine's host memory, of which ", format_bytes(there), " are free", cure);
}

}  // namespace bev
