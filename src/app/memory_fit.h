// Whether a run fits into the memory of this machine, and which settings would.
#pragma once

#include <string>

#include "app/run_config.h"
#include "comm/launch.h"
#include "plan/memory.h"

namespace bev {

// Planned memory against what there is: that of the fullest GPU, or, on the CPU, host memory of all
// ranks of this machine.
struct MemoryFit {
  double needed_bytes = 0;  // 0: unknown
  double there_bytes = 0;   // 0: unknown
  bool on_gpu = false;

  bool fits() const { return there_bytes == 0 || needed_bytes <= there_bytes; }
  std::string text() const;  // "1.50 GiB needed, 23.40 GiB there on this machine"
};
// `host_bytes` is the host memory to compare with.
MemoryFit memory_fit(const RunConfig& run, const MemoryPlan& plan, const Launch& launch,
                     double host_bytes);

// Lines to append to a message about too little memory: settings that would fit, with the bytes
// that each needs by the plan; if none does, all of them together.
std::string memory_advice(const RunConfig& run, const Launch& launch, double host_bytes);

// The memory of a run that starts now. Throws Error(kConfig) with such advice if it cannot fit:
// ranks on the CPU and offloaded parts into the free host memory, ranks on GPUs into these. Where
// the process has too few addresses for a plan (ulimit -v) nothing is known.
MemoryFit check_memory(const RunConfig& run, const Launch& launch);

}  // namespace bev
