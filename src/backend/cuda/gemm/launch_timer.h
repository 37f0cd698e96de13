// Times launches on the compute stream, to choose among kernels.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>

#include "backend/cuda/runtime/queue.h"

namespace bev {

class LaunchTimer {
 public:
  static constexpr float kNever = std::numeric_limits<float>::infinity();

  explicit LaunchTimer(CudaQueue& queue) : queue_(queue) {
    check_cuda(cudaEventCreate(&begin_), "make an event");
    check_cuda(cudaEventCreate(&end_), "make an event");
  }
  ~LaunchTimer() {
    cudaEventDestroy(end_);
    cudaEventDestroy(begin_);
  }
  LaunchTimer(const LaunchTimer&) = delete;
  LaunchTimer& operator=(const LaunchTimer&) = delete;

  // Shortest time of launch(), which returns false if it fails; kNever if it does at once. The host
  // waits. Gives up early if the launch is slower than `best`.
  template <class Launch>
  float milliseconds(const Launch& launch, float best) {
    constexpr int kRounds = 4;
    float shortest = kNever;
    for (int round = 0; round < kRounds; ++round) {
      check_cuda(cudaEventRecord(begin_, queue_.stream()), "record");
      if (!launch()) break;
      check_cuda(cudaEventRecord(end_, queue_.stream()), "record");
      queue_.wait(end_);
      float time = 0;
      check_cuda(cudaEventElapsedTime(&time, begin_, end_), "read a time");
      shortest = std::min(shortest, time);
      // The first round may include loading the kernel; a slow one is dropped after the second.
      if (round > 0 && shortest > 1.1F * best) break;
    }
    return shortest;
  }

 private:
  CudaQueue& queue_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace bev
