// A CUDA device whose memory is the host's and whose streams are always done: what is left of
// device groups is what the hosts do.
#include "tests/nccl/fake_cuda.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "backend/cuda/comm/peer_exchange.h"
#include "backend/cuda/runtime/queue.h"
#include "base/error.h"
#include "kernels/device.h"

namespace {
// Nobody looks at them.
const auto kStream = reinterpret_cast<cudaStream_t>(std::uintptr_t{1});
const auto kEvent = reinterpret_cast<cudaEvent_t>(std::uintptr_t{1});
thread_local std::int64_t allocations = 0;
}  // namespace

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = kEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = kStream;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) { return cudaSuccess; }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  ++allocations;
  *data = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t) {
  return cudaMalloc(data, bytes);
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

}  // extern "C"

namespace bev {

class CudaGemm {};
class CudaAttention {};

void check_cuda(cudaError_t error, const char* what) {
  BEV_CHECK(error == cudaSuccess, ErrorKind::kDevice, what);
}

std::int64_t fake_allocations() { return allocations; }

Staging::Block::~Block() = default;

CudaQueue::CudaQueue(int, const DeviceOptions&) {}
CudaQueue::~CudaQueue() = default;
void CudaQueue::wait_for_all() {
  for (DeviceWaitCheck* check : wait_checks_) check->before_wait();
}

void CudaQueue::begin_capture() { capturing_ = true; }

void cuda::run_exchange(cudaStream_t, const CollectivePlan& plan) {
  for (const CollectiveSlice& slice : cut_slices(plan)) run_slice(plan, slice);
}

}  // namespace bev
