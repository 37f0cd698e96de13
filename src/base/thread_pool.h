// The pool of CPU threads that a rank owns. Work is cut into pieces by shape, never by the number
// of threads, and each piece is computed by one thread: results do not depend on the thread count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace bev {

// That may run at once: what the machine has and what affinity (taskset, mpirun's binding) and the
// control group's quota (containers) leave of it. At least 1.
int machine_threads();

// Of a control group's cpu.max: "QUOTA PERIOD" in microseconds, or "max PERIOD".
constexpr int kNoQuota = 1 << 20;
int quota_threads(const std::string& cpu_max);

class ThreadPool {
 public:
  // The calling thread counts as one of `threads`; 1 starts no thread.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Memory for the owning thread's next work, 64-byte aligned, with whatever was left in it. It is
  // kept, and valid until the next call.
  std::byte* scratch(std::size_t bytes);

  // Calls body(piece) for every piece in [0, pieces), in any order, on any thread; returns when all
  // are done. Only the owning thread may call it, and body may not call it again. body must not
  // throw.
  template <class Body>
  void run(std::int64_t pieces, const Body& body) {
    run_pieces(pieces, &body, [](const void* erased, std::int64_t piece) {
      (*static_cast<const Body*>(erased))(piece);
    });
  }

 private:
  using PieceFunction = void (*)(const void* body, std::int64_t piece);
  void run_pieces(std::int64_t pieces, const void* body, PieceFunction function);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bev
