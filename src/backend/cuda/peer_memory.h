// The memory of a GPU that several ranks of a process share.
#pragma once

#include <memory>

#include "backend/cuda/queue.h"
#include "comm/peer_memory.h"

namespace bev {

// As the rank of `queue` sees it, for one group: its collectives and messages run beside each other
// and beside what ranks compute. The queue must outlive it.
std::shared_ptr<PeerMemory> make_cuda_peer_memory(CudaQueue& queue);

}  // namespace bev
