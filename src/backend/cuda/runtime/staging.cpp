// Pool of pinned staging buffers.
#include "backend/cuda/runtime/staging.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/runtime/queue.h"

namespace bev {

Staging::Block::Block(std::size_t capacity) : bytes(capacity) {
  check_cuda(cudaMallocHost(&data, bytes), "allocate pinned memory");
  check_cuda(cudaEventCreateWithFlags(&passed, cudaEventDisableTiming), "make an event");
}

Staging::Block::~Block() {
  cudaEventDestroy(passed);
  cudaFreeHost(data);
}

Staging::Block& Staging::take(std::size_t bytes) {
  constexpr std::size_t kSmallest = 4096;
  std::size_t capacity = std::bit_ceil(std::max(bytes, kSmallest));
  for (const auto& block : blocks_) {
    if (block->bytes != capacity || block->held) continue;
    cudaError_t state = cudaEventQuery(block->passed);
    if (state == cudaSuccess) return *block;
    if (state != cudaErrorNotReady) check_cuda(state, "look for an event");
    cudaGetLastError();  // cudaErrorNotReady is not an error
  }
  blocks_.push_back(std::make_unique<Block>(capacity));
  return *blocks_.back();
}

}  // namespace bev
