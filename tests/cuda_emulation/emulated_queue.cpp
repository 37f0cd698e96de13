// The queue of the emulated device, and what stands for cuDNN and cuBLAS: nothing.
#include <map>

#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/attention/attention_plans.h"
#include "backend/cuda/runtime/queue.h"
#include "base/error.h"
#include "kernels/device.h"
#include "tests/cuda_emulation/device_memory.h"
#include "tests/cuda_emulation/emulated_stream.h"

namespace bev {

void check_cuda(cudaError_t error, const char* what) {
  BEV_CHECK(error == cudaSuccess, ErrorKind::kDevice, "CUDA: ", what, ": an emulated error");
}

struct CudaAttention::Plans {};
CudaAttention::CudaAttention() = default;
CudaAttention::~CudaAttention() = default;
class CudaGemm {};

namespace {
std::map<const ScratchMemory*, std::unique_ptr<cuda_emulation::DeviceMemory>>& scratch_of() {
  static std::map<const ScratchMemory*, std::unique_ptr<cuda_emulation::DeviceMemory>> memory;
  return memory;
}
void check_scratch(const ScratchMemory* scratch) {
  const auto found = scratch_of().find(scratch);
  if (found == scratch_of().end()) return;
  EXPECT_TRUE(found->second->intact()) << "memory around the scratch memory was written";
  scratch_of().erase(found);
}
}  // namespace

ScratchMemory::~ScratchMemory() { check_scratch(this); }
// Each call has memory of its own, of exactly its size.
void* ScratchMemory::take(std::size_t bytes, bool) {
  check_scratch(this);
  auto& memory = scratch_of()[this];
  memory = std::make_unique<cuda_emulation::DeviceMemory>(bytes, 256);
  return memory->data();
}

CudaQueue::CudaQueue(int, const DeviceOptions&) {
  const cuda_emulation::Device& device = cuda_emulation::device();
  multiprocessors_ = device.multiprocessors;
  arch_ = device.arch;
  shared_memory_ = device.shared_memory;
}
CudaQueue::~CudaQueue() = default;
Staging::Block::~Block() = default;
bool CudaQueue::captures_behind_kernel() const { return false; }

bool cudnn_attention_forward(const Stream&, const AttentionForwardArgs&) { return false; }
bool cudnn_attention_backward(const Stream&, const AttentionBackwardArgs&) { return false; }

namespace cuda_emulation {

EmulatedStream::EmulatedStream(const Device& settings) {
  device() = settings;
  queue_ = std::make_unique<CudaQueue>(0, DeviceOptions{});
}
EmulatedStream::~EmulatedStream() = default;
EmulatedStream::operator Stream() { return {.handle = queue_.get()}; }

}  // namespace cuda_emulation
}  // namespace bev
