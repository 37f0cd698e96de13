// What the Stream of a CUDA rank carries: the stream itself, scratch memory, and the state of the
// libraries. For the kernels of this folder only.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/scratch.h"
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

// Work of another stream that the queue's is to follow.
class WorkBeside {
 public:
  // What the queue is given from now on comes after the work; once is enough.
  virtual void follow() noexcept = 0;

 protected:
  ~WorkBeside() = default;
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
  // For the kernels of one call.
  void* scratch(std::size_t bytes) { return scratch_.take(bytes, recording_); }

  Staging& staging() { return staging_; }
  // The host waits for the device, which is counted: a step is to do without.
  void wait(cudaEvent_t event);
  void wait_for_all();
  std::int64_t host_waits() const { return host_waits_; }
  void add_work_beside(WorkBeside& work) { beside_.push_back(&work); }
  void remove_work_beside(WorkBeside& work) { std::erase(beside_, &work); }
  // Between begin and end, work is recorded and not run; nothing can come from or go to the host.
  // Events do not reach into a recording nor out of it: what runs beside is followed at both ends.
  void begin_recording();
  cudaGraph_t end_recording();
  void abandon_recording();
  bool recording() const { return recording_; }

  CudaGemm& gemm();
  CudaAttention& attention();

 private:
  void before_wait();
  void follow_all();

  cudaStream_t stream_ = nullptr;
  int multiprocessors_ = 0;
  ScratchMemory scratch_;
  Staging staging_;
  std::int64_t host_waits_ = 0;
  bool recording_ = false;
  std::unique_ptr<CudaGemm> gemm_;
  std::unique_ptr<CudaAttention> attention_;
  std::vector<DeviceWaitCheck*> wait_checks_;
  std::vector<WorkBeside*> beside_;
};

inline CudaQueue& queue_of(const Stream& stream) { return *static_cast<CudaQueue*>(stream.handle); }

// Error(kDevice) naming what failed.
void check_cuda(cudaError_t error, const char* what);
// After a launch.
inline void check_launch(const char* kernel) { check_cuda(cudaPeekAtLastError(), kernel); }

}  // namespace bev
