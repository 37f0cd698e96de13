// Checks that the machine has enough host memory for offloaded activations and optimizer state.
#pragma once

#include "app/run_config.h"
#include "comm/launch.h"

namespace bev {

// Throws Error(kConfig) with the required and the available memory if offloaded activations or
// optimizer state of this machine's processes do not fit.
void check_host_memory(const RunConfig& run, const Launch& launch);

}  // namespace bev
