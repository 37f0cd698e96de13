// Groups of ranks in several processes or on several GPUs, over NCCL.
#pragma once

#include <memory>

#include "backend/cuda/queue.h"
#include "comm/group.h"

namespace bev {

// The members of `host`, which must outlive it; all make it together. Sums have NCCL's own order,
// which depends on the number and the places of ranks; deterministic: rank order, at the cost of an
// exchange and memory of the size of the data.
std::unique_ptr<Group> make_nccl_group(Group& host, CudaQueue& queue, bool deterministic);

}  // namespace bev
