// A function with a stack of its own, entered from and left to the stack of the caller.
#pragma once

#include <cstddef>

namespace bev::cuda_emulation {

class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next enter() calls `main`, which never returns; what ran before is dropped.
  void begin(void (*main)());
  void enter();
  // Called in the fiber: returns to the caller of enter().
  void leave();

 private:
  static void start(Fiber* fiber);
  void* stack_ = nullptr;
  void* own_ = nullptr;  // stack pointers while it does not run
  void* caller_ = nullptr;
  void (*main_)() = nullptr;
  // For AddressSanitizer.
  void* fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  std::size_t caller_bytes_ = 0;
};

}  // namespace bev::cuda_emulation
