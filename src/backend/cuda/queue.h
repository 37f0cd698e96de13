// What the Stream of a CUDA rank carries: the stream itself, scratch memory, and the state of the
// libraries. For the kernels of this folder only.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/staging.h"
#include "tensor/stream.h"

namespace bev {

struct DeviceOptions;
class CudaGemm;       // gemm.cpp: handle, workspace, the algorithm of each shape
class CudaAttention;  // cudnn_attention.cpp: handle, the plan of each shape

// Asked before the host waits for the device, whose work may wait for other ranks; throws when they
// do not come.
class DeviceWaitCheck {
 public:
  virtual void before_wait() = 0;

 protected:
  ~DeviceWaitCheck() = default;
};

class CudaQueue {
 public:
  // Deterministic: nothing is chosen by measurement, and no kernel adds in an order of its own.
  CudaQueue(int device, const DeviceOptions& options);
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  cudaStream_t stream() const { return stream_; }
  int multiprocessors() const { return multiprocessors_; }
  void add_wait_check(DeviceWaitCheck& check) { wait_checks_.push_back(&check); }
  void remove_wait_check(DeviceWaitCheck& check) { std::erase(wait_checks_, &check); }
  // Device memory for the kernels of one call: the next call on this queue may overwrite it.
  // 256-byte aligned. Grows at its first uses; what it had stays, since recordings may know it.
  void* scratch(std::size_t bytes);

  Staging& staging() { return staging_; }
  // The host waits for the device, which is counted: a step is to do without.
  void wait(cudaEvent_t event);
  void wait_for_all();
  std::int64_t host_waits() const { return host_waits_; }
  // Between begin and end, work is recorded and not run; nothing can come from or go to the host.
  void begin_recording();
  cudaGraph_t end_recording();
  void abandon_recording();
  bool recording() const { return recording_; }

  CudaGemm& gemm();
  CudaAttention& attention();

 private:
  void before_wait();

  cudaStream_t stream_ = nullptr;
  int multiprocessors_ = 0;
  std::vector<void*> scratch_;  // the last one is the largest, and in use
  std::size_t scratch_bytes_ = 0;
  Staging staging_;
  std::int64_t host_waits_ = 0;
  bool recording_ = false;
  std::unique_ptr<CudaGemm> gemm_;
  std::unique_ptr<CudaAttention> attention_;
  std::vector<DeviceWaitCheck*> wait_checks_;
};

inline CudaQueue& queue_of(const Stream& stream) { return *static_cast<CudaQueue*>(stream.handle); }

// Error(kDevice) naming what failed.
void check_cuda(cudaError_t error, const char* what);
// After a launch.
inline void check_launch(const char* kernel) { check_cuda(cudaPeekAtLastError(), kernel); }

}  // namespace bev
