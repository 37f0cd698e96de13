// A CUDA device on the CPU, for translated kernels (translate.py). A thread is a fiber; the blocks
// of a cluster run together, clusters one after the other in random order. A thread runs until it
// waits at a barrier or a warp collective; which one runs next depends on the schedule. Shared
// memory begins as NaN, and cp.async makes its target NaN until it is waited for, so that reads
// without a barrier or a wait give NaN under one of the schedules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>

#include "tests/cuda_emulation/include/vector_types.h"

namespace bev::cuda_emulation {

// Which of the threads that may run goes next.
enum class Schedule { kFirst, kLast, kRandom };

struct Device {
  int multiprocessors = 132, arch = 90;
  std::size_t shared_memory = 227 << 10;
  Schedule schedule = Schedule::kRandom;
  std::uint64_t seed = 1;
  std::int64_t launches = 0;  // so far
};
Device& device();

// An error of a kernel: a bad address, a deadlock, a collective that not all lanes call.
class KernelFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// What stands between <<< and >>>.
struct Configuration {
  Configuration(dim3 grid_blocks, dim3 block_threads, std::size_t dynamic_bytes = 0,
                cudaStream_t = nullptr)
      : grid(grid_blocks), block(block_threads), shared_bytes(dynamic_bytes) {}
  dim3 grid, block, cluster;
  std::size_t shared_bytes;
};

// Runs `thread` for all threads of the grid; throws KernelFault.
void run_kernel(const char* name, const Configuration& launch, const std::function<void()>& thread);

template <class Call>
struct Launcher {
  const char* name;
  Configuration launch;
  Call call;
  template <class... Args>
  void operator()(Args... args) const {
    run_kernel(name, launch, [&] { call(args...); });
  }
};
template <class Call>
Launcher<Call> launcher(const char* name, Configuration launch, Call call) {
  return {name, launch, call};
}

// The following are called by the threads of a kernel.

// Ends the kernel with a KernelFault.
[[noreturn]] void fault(const char* what);

void* dynamic_shared();
// Memory of a shared variable, which `key` identifies; the same for all threads of a block.
void* static_shared(const void* key, std::size_t bytes, std::size_t alignment);
template <class T, class Place>
T& shared_variable(Place) {
  static const char key = 0;
  return *static_cast<T*>(static_shared(&key, sizeof(T), alignof(T)));
}
// Addresses in the shared memory of the cluster, as 32-bit numbers.
std::uint32_t shared_address(const void* pointer);
std::uint32_t shared_address_in(std::uint32_t address, int rank);
// Faults unless [address, address + bytes) is in a variable of a block that still runs.
void* shared_pointer(std::uint32_t address, std::size_t bytes);

// What the lanes of `mask` compute together once all of them have called it with the same body:
// lanes[i] is the payload of lane i, null if it is not in the mask or has ended.
using WarpBody = void (*)(void* const (&lanes)[32]);
void warp_collective(unsigned mask, WarpBody body, void* payload);
// The same for all 32 lanes, none of which has ended.
void aligned_collective(WarpBody body, void* payload);
int lane_index();

// Barriers; the first returns how many threads have set `predicate`.
int block_barrier(bool predicate);
void named_barrier(int index, int threads);
void cluster_barrier();

// cp.async of this thread.
void copy_async(std::uint32_t to, const void* from, int bytes, int valid_bytes);
void commit_copies();
void wait_for_copies(int pending_groups);

}  // namespace bev::cuda_emulation
