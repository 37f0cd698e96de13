// PeerMemory of a GPU that several ranks of a process share.
#pragma once

#include <memory>

#include "backend/cuda/runtime/queue.h"
#include "comm/peer_memory.h"

namespace bev {

// For one group, from the rank of `queue`: its collectives and messages overlap with each other and
// with the ranks' compute. The queue must outlive it.
std::shared_ptr<PeerMemory> make_cuda_peer_memory(CudaQueue& queue);

}  // namespace bev
