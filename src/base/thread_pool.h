// CPU thread pool owned by a rank. Work is split into pieces by shape, never by the number of
// threads, and one thread computes each piece: results are independent of the thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/function_ref.h"

namespace bev {

// Number of threads that can run at once: hardware threads limited by CPU affinity (taskset, mpirun
// binding) and the cgroup CPU quota (containers). At least 1.
int machine_threads();

// Thread count allowed by a cgroup's cpu.max: "QUOTA PERIOD" in microseconds, or "max PERIOD".
constexpr int kNoQuota = 1 << 20;
int quota_threads(const std::string& cpu_max);

class ThreadPool {
 public:
  // The calling thread is one of `threads`; with 1, no thread is started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Scratch memory for the owning thread's next kernel, 64-byte aligned and uninitialised. The pool
  // owns it; it is valid until the next call.
  std::byte* scratch(std::size_t bytes);

  // Calls body(piece) for every piece in [0, pieces), in any order, on any thread; returns when all
  // are done. Only the owning thread may call it. body must not call it recursively and must not
  // throw.
  void run(std::int64_t pieces, FunctionRef<void(std::int64_t piece)> body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
