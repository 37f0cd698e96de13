// A planned collective between ranks that share a GPU, as one kernel over the memory of all ranks.
#pragma once

#include <cuda_runtime.h>

#include "comm/host_collective.h"

namespace bev::cuda {

// One launch if the plan fits into the kernel parameters, which holds for up to 8 members; a few
// launches otherwise. Sums are bit-equal to those of the host transports.
void run_exchange(cudaStream_t stream, const CollectivePlan& plan);

}  // namespace bev::cuda
