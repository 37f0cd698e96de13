// Whether the machine has the host memory that a run is going to ask for.
#pragma once

#include "app/run_config.h"
#include "comm/launch.h"

namespace bev {

// Error(kConfig) naming what is needed and what is there, where activations or optimizer state are
// offloaded and the processes of this machine would not find room for them.
void check_host_memory(const RunConfig& run, const Launch& launch);

}  // namespace bev
