// Device scratch memory that grows and keeps its old blocks.
#include "backend/cuda/runtime/scratch.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <exception>

#include "backend/cuda/runtime/queue.h"
#include "base/error.h"

namespace bev {

// While an exception unwinds, the device may wait for ranks that never arrive, and cudaFree would
// hang.
ScratchMemory::~ScratchMemory() {
  if (std::uncaught_exceptions() > 0) return;
  for (void* memory : blocks_) cudaFree(memory);
}

void* ScratchMemory::take(std::size_t bytes, bool capturing) {
  if (bytes > bytes_) {
    BEV_CHECK(!capturing, ErrorKind::kInternal, "scratch memory grows while work is recorded");
    std::size_t more = std::max(bytes, 2 * bytes_);
    blocks_.push_back(nullptr);
    check_cuda(cudaMalloc(&blocks_.back(), more), "allocate scratch memory");
    bytes_ = more;
  }
  return blocks_.empty() ? nullptr : blocks_.back();
}

}  // namespace bev
