// Where kernels run: on the CPU the rank's thread pool, on a GPU a stream. Kernels are asynchronous
// with respect to the host on a GPU and finished on return on the CPU.
#pragma once

namespace bev {

class ThreadPool;

struct Stream {
  ThreadPool* pool = nullptr;  // CPU
  void* handle = nullptr;      // accelerator stream
};

}  // namespace bev
