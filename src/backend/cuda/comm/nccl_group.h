// Groups of ranks in several processes or on several GPUs: collectives over NCCL.
#pragma once

#include <memory>

#include "backend/cuda/runtime/queue.h"
#include "comm/group.h"

namespace bev {

// Same members as `host`, which must outlive the group; creation is collective. Sums are in the
// order of NCCL, which depends on the number and topology of ranks; if deterministic, in rank
// order, at the cost of an all-to-all and a buffer of the size of the data.
std::unique_ptr<Group> make_nccl_group(Group& host, CudaQueue& queue, bool deterministic);

}  // namespace bev
