#include "tests/cuda_emulation/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the registers that a call preserves, and takes over those of the other stack.
extern "C" void bev_switch_stacks(void** save, void* to);
asm(R"(
.text
.globl bev_switch_stacks
.type bev_switch_stacks, @function
bev_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size bev_switch_stacks, .-bev_switch_stacks
)");

namespace bev::cuda_emulation {

namespace {
constexpr std::size_t kPage = 4096, kStackBytes = 256 << 10;
Fiber* started = nullptr;
}  // namespace

Fiber::Fiber() {
  stack_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack_ == MAP_FAILED || mprotect(stack_, kPage, PROT_NONE) != 0) throw std::bad_alloc();
}

Fiber::~Fiber() { munmap(stack_, kStackBytes); }

void Fiber::begin(void (*main)()) {
  main_ = main;
  // The first switch pops six registers and returns to start, with the stack as after a call.
  auto* top = reinterpret_cast<std::uint64_t*>(static_cast<char*>(stack_) + kStackBytes - 16);
  *--top = 0;
  *--top = reinterpret_cast<std::uint64_t>(+[] { start(started); });
  for (int i = 0; i < 6; ++i) *--top = 0;
  own_ = top;
  fake_stack_ = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(static_cast<char*>(stack_) + kPage, kStackBytes - kPage);
#endif
}

void Fiber::start(Fiber* fiber) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &fiber->caller_stack_, &fiber->caller_bytes_);
#endif
  fiber->main_();
  std::abort();
}

void Fiber::enter() {
  started = this;
#if defined(__SANITIZE_ADDRESS__)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, static_cast<char*>(stack_) + kPage, kStackBytes - kPage);
#endif
  bev_switch_stacks(&caller_, own_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void Fiber::leave() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&fake_stack_, caller_stack_, caller_bytes_);
#endif
  bev_switch_stacks(&own_, caller_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, &caller_stack_, &caller_bytes_);
#endif
}

}  // namespace bev::cuda_emulation
