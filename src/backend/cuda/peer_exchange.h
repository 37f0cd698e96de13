// A planned collective between ranks that share a GPU, as one kernel over the memory of all.
#pragma once

#include <cuda_runtime.h>

#include "comm/host_collective.h"

namespace bev::cuda {

// One launch where the plan fits into a kernel's parameters, as it does for up to 8 members; a few
// otherwise. Sums have the bits of the host's transports.
void run_exchange(cudaStream_t stream, const CollectivePlan& plan);

}  // namespace bev::cuda
