// Execution queue of kernels: the rank's thread pool on the CPU, a CUDA stream on a GPU. Kernels
// are asynchronous to the host on a GPU; on the CPU they have finished on return.
#pragma once

namespace bev {

class ThreadPool;

struct Stream {
  ThreadPool* pool = nullptr;  // CPU
  void* handle = nullptr;      // cudaStream_t
};

}  // namespace bev
