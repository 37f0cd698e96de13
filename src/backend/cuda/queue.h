// What the Stream of a CUDA rank carries: the stream itself, scratch memory, and the state of the
// libraries. For the kernels of this folder only.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/stream.h"

namespace bev {

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
  CudaQueue(int device, bool deterministic);
  ~CudaQueue();
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  cudaStream_t stream() const { return stream_; }
  int multiprocessors() const { return multiprocessors_; }
  // Until all that is in the stream is done.
  void wait();
  void add_wait_check(DeviceWaitCheck& check) { wait_checks_.push_back(&check); }
  void remove_wait_check(DeviceWaitCheck& check) { std::erase(wait_checks_, &check); }
  // Device memory for the kernels of one call: the next call on this queue may overwrite it.
  // 256-byte aligned. Grows at its first uses, which waits for the device.
  void* scratch(std::size_t bytes);

  CudaGemm& gemm();
  CudaAttention& attention();

 private:
  cudaStream_t stream_ = nullptr;
  int multiprocessors_ = 0;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
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
