// CudaQueue, the handle in the Stream of a CUDA rank: its compute stream, scratch memory, CUDA
// graph capture and library state. Only for the kernels of this folder.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/runtime/scratch.h"
#include "backend/cuda/runtime/staging.h"
#include "tensor/stream.h"

namespace bev {

struct DeviceOptions;
class CudaGemm;       // gemm.cpp: handle, workspace, the algorithm of each shape
class CudaAttention;  // cudnn_attention.cpp: handle, the plan of each shape

// Called before the host blocks on the device, whose work may depend on other ranks; throws if they
// did not arrive.
class DeviceWaitCheck {
 public:
  virtual void before_wait() = 0;

 protected:
  ~DeviceWaitCheck() = default;
};

// Work on another stream that the compute stream must join later.
class SideStreamWork {
 public:
  // Makes later work on the compute stream wait for this work; only the first call has an effect.
  virtual void follow() noexcept = 0;

 protected:
  ~SideStreamWork() = default;
};

class CudaQueue {
 public:
  // In deterministic mode there is no autotuning, and no kernel sums in a varying order.
  CudaQueue(int device, const DeviceOptions& options);
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  cudaStream_t stream() const { return stream_; }
  int multiprocessors() const { return multiprocessors_; }
  // Architecture that kernels are chosen for, 10 x major + minor, and the most shared memory of
  // their blocks, in bytes.
  int arch() const { return arch_; }
  std::size_t shared_memory() const { return shared_memory_; }
  void add_wait_check(DeviceWaitCheck& check) { wait_checks_.push_back(&check); }
  void remove_wait_check(DeviceWaitCheck& check) { std::erase(wait_checks_, &check); }
  // Scratch memory for the kernels of one call.
  void* scratch(std::size_t bytes) { return scratch_.take(bytes, capturing_); }

  Staging& staging() { return staging_; }
  // The host blocks on the device. Waits are counted, because a training step should have none.
  void wait(cudaEvent_t event);
  void wait_for_all();
  std::int64_t host_waits() const { return host_waits_; }
  void add_side_stream_work(SideStreamWork& work) { side_stream_work_.push_back(&work); }
  void remove_side_stream_work(SideStreamWork& work) { std::erase(side_stream_work_, &work); }
  // CUDA graph capture: between begin and end, work is captured and not run, and there are no
  // transfers from or to the host. Events do not cross the ends of a capture, so the compute stream
  // joins all work on side streams at both ends.
  void begin_capture();
  cudaGraph_t end_capture();
  void abandon_capture();
  bool capturing() const { return capturing_; }
  // True if what is captured next waits for a single kernel and nothing else, on a device where it
  // may overlap that kernel (sm_90 and later).
  bool captures_behind_kernel() const;

  CudaGemm& gemm();
  CudaAttention& attention();

 private:
  void before_wait();
  void follow_all();

  cudaStream_t stream_ = nullptr;
  int multiprocessors_ = 0, arch_ = 0;
  std::size_t shared_memory_ = 0;
  ScratchMemory scratch_;
  Staging staging_;
  std::int64_t host_waits_ = 0;
  bool capturing_ = false;
  std::unique_ptr<CudaGemm> gemm_;
  std::unique_ptr<CudaAttention> attention_;
  std::vector<DeviceWaitCheck*> wait_checks_;
  std::vector<SideStreamWork*> side_stream_work_;
};

inline CudaQueue& queue_of(const Stream& stream) { return *static_cast<CudaQueue*>(stream.handle); }

// Throws Error(kDevice) naming what failed.
void check_cuda(cudaError_t error, const char* what);
// Checks for errors of the launch just made.
inline void check_launch(const char* kernel) { check_cuda(cudaPeekAtLastError(), kernel); }

}  // namespace bev
