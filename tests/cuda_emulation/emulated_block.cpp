// Fibers, barriers, shared memory and cp.async of emulated blocks.
#include "tests/cuda_emulation/emulated_block.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/divide.h"
#include "base/philox.h"
#include "tests/cuda_emulation/fiber.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace bev::cuda_emulation {

namespace {

constexpr int kWarp = 32, kMostThreads = 1024, kMostBlocks = 16;  // of a cluster
constexpr std::size_t kPage = 4096, kSegment = 512 << 10;         // of shared memory of a block
constexpr std::size_t kStaticLimit = 48 << 10;
constexpr std::size_t kRedZone = 64, kDynamicAlignment = 128;
constexpr unsigned char kNan = 0xff, kCanary = 0xa5;

enum class Waits { kNothing, kCollective, kBlock, kNamed, kCluster, kEnded };

struct AsyncCopy {
  std::uint32_t to;
  int bytes;
  unsigned char data[16];
};

struct Block;

struct Thread {
  std::unique_ptr<Fiber> fiber;
  Block* block = nullptr;
  uint3 index{};
  int number = 0;
  Waits waits = Waits::kNothing;
  // What it waits for: a warp collective or a barrier.
  unsigned mask = 0;
  WarpBody body = nullptr;
  void* payload = nullptr;
  bool predicate = false;
  int barrier = 0, barrier_threads = 0;
  // cp.async: copies of each group; the last group is open.
  std::vector<std::vector<AsyncCopy>> copies;
};

struct Variable {
  std::uint32_t at;  // shared address
  std::size_t bytes;
  const void* key;
};

struct Block {
  uint3 index{};
  std::vector<Thread*> threads;
  int alive = 0, predicates = 0;
  std::vector<Variable> variables;
  std::size_t static_bytes = 0;
};

struct Machine {
  Device settings;
  unsigned char* shared = nullptr;
  std::vector<std::unique_ptr<Thread>> pool;
  std::vector<Block> cluster;
  std::vector<Thread*> ready;
  std::size_t first_ready = 0;
  Thread* current = nullptr;
  const Configuration* launch = nullptr;
  const std::function<void()>* body = nullptr;
  const char* name = "";
  std::string error;
  std::uint64_t draws = 0;
  std::map<const void*, int> dynamic_limits;
  sigjmp_buf after_signal;
};

Machine& machine() {
  static Machine instance;
  return instance;
}

std::uint64_t draw() {
  Machine& m = machine();
  return mix_bits(m.settings.seed, ++m.draws);
}

std::string where() {
  Machine& m = machine();
  std::string out = m.name;
  if (m.current == nullptr) return out;
  const Thread& thread = *m.current;
  const auto triple = [](uint3 i) {
    return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) +
           ")";
  };
  return out + ", block " + triple(thread.block->index) + ", thread " + triple(thread.index);
}

// Waiting.

void make_ready(Thread* thread) {
  thread->waits = Waits::kNothing;
  machine().ready.push_back(thread);
}

void yield_as(Waits waits) {
  Machine& m = machine();
  Thread* thread = m.current;
  thread->waits = waits;
  thread->fiber->leave();
}

Thread* lane_of(const Thread& thread, int lane) {
  const std::size_t at = static_cast<std::size_t>(thread.number / kWarp * kWarp + lane);
  const auto& threads = thread.block->threads;
  return at < threads.size() ? threads[at] : nullptr;
}

// Completes the collective that `of` waits in, if all its lanes do.
void try_collective(const Thread& of) {
  void* payloads[kWarp] = {};
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((of.mask >> lane & 1) == 0) continue;
    const Thread* other = lane_of(of, lane);
    if (other == nullptr || other->waits == Waits::kEnded) continue;
    if (other->waits != Waits::kCollective) return;
    if (other->mask != of.mask) return;  // a deadlock, unless it is completed by other lanes
    if (other->body != of.body) fault("lanes of a warp call different collectives");
  }
  const unsigned mask = of.mask;
  const WarpBody body = of.body;
  for (int lane = 0; lane < kWarp; ++lane) {
    Thread* other = mask >> lane & 1 ? lane_of(of, lane) : nullptr;
    if (other == nullptr || other->waits == Waits::kEnded) continue;
    // A lane without a payload takes part as well.
    payloads[lane] = other->payload != nullptr ? other->payload : other;
  }
  body(payloads);
  for (int lane = 0; lane < kWarp; ++lane) {
    Thread* other = mask >> lane & 1 ? lane_of(of, lane) : nullptr;
    if (other != nullptr && other->waits == Waits::kCollective) make_ready(other);
  }
}

void try_block_barrier(Block& block) {
  int waiting = 0, predicates = 0;
  for (const Thread* thread : block.threads) {
    if (thread->waits == Waits::kEnded) continue;
    if (thread->waits != Waits::kBlock) return;
    ++waiting;
    predicates += thread->predicate;
  }
  if (waiting == 0) return;
  block.predicates = predicates;
  for (Thread* thread : block.threads) {
    if (thread->waits == Waits::kBlock) make_ready(thread);
  }
}

void try_named_barrier(Block& block, int index, int threads) {
  int waiting = 0;
  for (const Thread* thread : block.threads) {
    if (thread->waits != Waits::kNamed || thread->barrier != index) continue;
    if (thread->barrier_threads != threads) fault("bar.sync with different numbers of threads");
    ++waiting;
  }
  if (waiting < threads) return;
  for (Thread* thread : block.threads) {
    if (thread->waits == Waits::kNamed && thread->barrier == index) make_ready(thread);
  }
}

void try_cluster_barrier() {
  for (const Block& block : machine().cluster) {
    for (const Thread* thread : block.threads) {
      if (thread->waits != Waits::kCluster && thread->waits != Waits::kEnded) return;
    }
  }
  for (const Block& block : machine().cluster) {
    for (Thread* thread : block.threads) {
      if (thread->waits == Waits::kCluster) make_ready(thread);
    }
  }
}

void end_thread() {
  Thread& thread = *machine().current;
  thread.waits = Waits::kEnded;
  --thread.block->alive;
  // Those that wait for this one no longer do.
  for (int lane = 0; lane < kWarp; ++lane) {
    Thread* other = lane_of(thread, lane);
    if (other != nullptr && other->waits == Waits::kCollective) try_collective(*other);
  }
  try_block_barrier(*thread.block);
  if (machine().cluster.size() > 1) try_cluster_barrier();
}

void thread_main() {
  (*machine().body)();
  commit_copies();
  wait_for_copies(0);  // they land at some time
  end_thread();
  machine().current->fiber->leave();
}

// Shared memory.

unsigned char* segment(std::size_t rank) { return machine().shared + rank * kSegment; }

void protect(void* at, std::size_t bytes, int protection) {
  if (mprotect(at, bytes, protection) != 0) throw KernelFault("cannot protect shared memory");
}

void make_shared_memory() {
  Machine& m = machine();
  if (m.shared != nullptr) return;
  void* memory = mmap(nullptr, kMostBlocks * kSegment, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw KernelFault("no memory for shared memory");
  m.shared = static_cast<unsigned char*>(memory);
  for (std::size_t rank = 0; rank < kMostBlocks; ++rank) {
    protect(segment(rank), kPage, PROT_NONE);
    protect(segment(rank) + kSegment - kPage, kPage, PROT_NONE);
  }
}

std::size_t rank_of(const Block& block) {
  return static_cast<std::size_t>(&block - machine().cluster.data());
}

// The dynamic memory ends at the last page of the segment, which is not accessible.
void add_dynamic(Block& block) {
  const std::size_t bytes = machine().launch->shared_bytes;
  const std::size_t from = (kSegment - kPage - bytes) / kDynamicAlignment * kDynamicAlignment;
  unsigned char* base = segment(rank_of(block));
  std::memset(base + from - kDynamicAlignment, kCanary,
              kSegment - kPage - from + kDynamicAlignment);
  std::memset(base + from, kNan, bytes);
  block.variables.push_back(
      {static_cast<std::uint32_t>(rank_of(block) * kSegment + from), bytes, nullptr});
}

void check_canaries(const Block& block) {
  for (const Variable& variable : block.variables) {
    const unsigned char* at = machine().shared + variable.at;
    const std::size_t room = kSegment - kPage - variable.at % kSegment - variable.bytes;
    for (std::size_t i = 1; i <= kRedZone; ++i) {
      if (at[-static_cast<std::ptrdiff_t>(i)] != kCanary) {
        fault("shared memory below a variable was written");
      }
      if (i <= room && at[variable.bytes + i - 1] != kCanary) {
        fault("shared memory above a variable was written");
      }
    }
  }
}

// The fibers' stacks.
Thread& pooled_thread(std::size_t i) {
  auto& pool = machine().pool;
  while (pool.size() <= i) {
    pool.push_back(std::make_unique<Thread>());
    pool.back()->fiber = std::make_unique<Fiber>();
  }
  return *pool[i];
}

void begin_block(Block& block, uint3 index, std::size_t first_thread) {
  const Configuration& launch = *machine().launch;
  block.index = index;
  const unsigned count = launch.block.x * launch.block.y * launch.block.z;
  block.alive = static_cast<int>(count);
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = pooled_thread(first_thread + i);
    thread.block = &block;
    thread.number = static_cast<int>(i);
    thread.index = {i % launch.block.x, i / launch.block.x % launch.block.y,
                    i / launch.block.x / launch.block.y};
    thread.copies.assign(1, {});
    thread.fiber->begin(thread_main);
    block.threads.push_back(&thread);
    make_ready(&thread);
  }
  add_dynamic(block);
}

Thread* next_ready() {
  Machine& m = machine();
  std::size_t at = m.first_ready;
  if (m.settings.schedule == Schedule::kFirst) {
    Thread* thread = m.ready[m.first_ready++];
    if (m.first_ready == m.ready.size()) m.ready.clear(), m.first_ready = 0;
    return thread;
  }
  const std::size_t left = m.ready.size() - m.first_ready;
  // Mostly a neighbour of the last one: warps get far apart.
  if (m.settings.schedule == Schedule::kRandom && draw() % 8 == 0) {
    at += static_cast<std::size_t>(draw() % left);
  } else {
    at = m.ready.size() - 1;
  }
  std::swap(m.ready[at], m.ready.back());
  Thread* thread = m.ready.back();
  m.ready.pop_back();
  if (m.first_ready == m.ready.size()) m.ready.clear(), m.first_ready = 0;
  return thread;
}

std::string deadlock() {
  std::string out = "deadlock:";
  int shown = 0;
  for (const Block& block : machine().cluster) {
    for (const Thread* thread : block.threads) {
      if (thread->waits == Waits::kEnded || ++shown > 6) continue;
      constexpr const char* kNames[] = {"nothing",         "its warp",    "__syncthreads",
                                        "a named barrier", "its cluster", "the end"};
      out += " thread " + std::to_string(thread->number) + " waits for " +
             kNames[static_cast<int>(thread->waits)] + ";";
    }
  }
  return out;
}

void run_cluster() {
  Machine& m = machine();
  while (!m.ready.empty()) {
    Thread* thread = next_ready();
    m.current = thread;
    threadIdx = thread->index;
    blockIdx = thread->block->index;
    thread->fiber->enter();
    if (!m.error.empty()) throw KernelFault(m.error);
  }
  m.current = nullptr;
  for (const Block& block : m.cluster) {
    if (block.alive > 0) throw KernelFault(std::string(m.name) + ": " + deadlock());
    check_canaries(block);
    if (!m.error.empty()) throw KernelFault(m.error);
  }
}

void on_signal(int, siginfo_t* info, void*) {
  Machine& m = machine();
  if (m.current == nullptr) {
    signal(SIGSEGV, SIG_DFL);
    return;
  }
  char address[32];
  snprintf(address, sizeof(address), "%p", info->si_addr);
  m.error = where() + ": access to memory that is not its own, at " + address;
  siglongjmp(m.after_signal, 1);
}

// Access errors end a kernel, not the process. Sanitizers have their own handlers.
class SignalGuard {
 public:
  SignalGuard() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    static std::vector<char> stack(1 << 16);
    stack_t alternative = {};
    alternative.ss_sp = stack.data();
    alternative.ss_size = stack.size();
    sigaltstack(&alternative, &old_stack_);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &old_);
    sigaction(SIGBUS, &action, &old_bus_);
#endif
  }
  ~SignalGuard() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    sigaction(SIGSEGV, &old_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
    sigaltstack(&old_stack_, nullptr);
#endif
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  stack_t old_stack_ = {};
  struct sigaction old_ = {}, old_bus_ = {};
};

void check_launch_limits(const Configuration& launch) {
  const std::uint64_t threads = std::uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  const auto refuse = [&](const char* what) {
    throw KernelFault(std::string(machine().name) + ": launch with " + what);
  };
  if (threads == 0 || threads > kMostThreads) refuse("0 or more than 1024 threads per block");
  if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0) refuse("an empty grid");
  if (launch.grid.x > 0x7fffffffu || launch.grid.y > 65535 || launch.grid.z > 65535) {
    refuse("a grid that is too large");
  }
  if (launch.shared_bytes > device().shared_memory) refuse("too much shared memory");
  if (launch.cluster.y > 8 || launch.grid.y % launch.cluster.y != 0) refuse("a bad cluster size");
}

void run_clusters() {
  Machine& m = machine();
  const Configuration& launch = *m.launch;
  const unsigned high = launch.cluster.y, columns = launch.grid.y / high;
  const std::uint64_t clusters = std::uint64_t{launch.grid.x} * columns * launch.grid.z;
  // A step that has no divisor in common with the number visits all clusters.
  const std::uint64_t start = draw() % clusters;
  for (std::uint64_t i = 0; i < clusters; ++i) {
    const bool reverse = m.settings.schedule == Schedule::kLast;
    const std::uint64_t at = (start + (reverse ? clusters - 1 - i : i)) % clusters;
    m.cluster.assign(high, {});
    m.ready.clear();
    m.first_ready = 0;
    for (unsigned y = 0; y < high; ++y) {
      const uint3 index = {static_cast<unsigned>(at % launch.grid.x),
                           static_cast<unsigned>(at / launch.grid.x % columns) * high + y,
                           static_cast<unsigned>(at / launch.grid.x / columns)};
      begin_block(m.cluster[y], index, y * kMostThreads);
    }
    run_cluster();
  }
}

}  // namespace

Device& device() { return machine().settings; }

void run_kernel(const char* name, const Configuration& launch,
                const std::function<void()>& thread) {
  Machine& m = machine();
  m.name = name;
  m.launch = &launch;
  m.body = &thread;
  m.error.clear();
  ++m.settings.launches;
  check_launch_limits(launch);
  make_shared_memory();
  gridDim = launch.grid;
  blockDim = launch.block;
  const SignalGuard guard;
  if (sigsetjmp(m.after_signal, 1) != 0) {
    m.current = nullptr;
    throw KernelFault(m.error);
  }
  try {
    run_clusters();
  } catch (...) {
    m.current = nullptr;
    throw;
  }
}

Configuration configuration_of(const cudaLaunchConfig_t& config, const void* kernel) {
  Configuration out(config.gridDim, config.blockDim, config.dynamicSmemBytes);
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id != cudaLaunchAttributeClusterDimension) continue;
    out.cluster =
        dim3(attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z);
  }
  const auto& limits = machine().dynamic_limits;
  const auto found = limits.find(kernel);
  const std::size_t limit =
      found == limits.end() ? kStaticLimit : static_cast<std::size_t>(found->second);
  if (config.dynamicSmemBytes > limit && config.dynamicSmemBytes > kStaticLimit) {
    throw KernelFault("a launch has more dynamic shared memory than the kernel was given");
  }
  return out;
}

void fault(const char* what) {
  Machine& m = machine();
  m.error = where() + ": " + what;
  if (m.current == nullptr) throw KernelFault(m.error);
  m.current->fiber->leave();
  std::abort();
}

void* dynamic_shared() {
  const Block& block = *machine().current->block;
  return machine().shared + block.variables[0].at;
}

void* static_shared(const void* key, std::size_t bytes, std::size_t alignment) {
  Block& block = *machine().current->block;
  for (const Variable& variable : block.variables) {
    if (variable.key == key) return machine().shared + variable.at;
  }
  const std::size_t from = round_up(kPage + block.static_bytes + kRedZone, alignment);
  block.static_bytes = from + bytes - kPage;
  if (block.static_bytes > kStaticLimit + 16 * kRedZone) fault("more than 48 KiB of __shared__");
  unsigned char* at = segment(rank_of(block)) + from;
  std::memset(at - kRedZone, kCanary, bytes + 2 * kRedZone);
  std::memset(at, kNan, bytes);
  block.variables.push_back(
      {static_cast<std::uint32_t>(rank_of(block) * kSegment + from), bytes, key});
  return at;
}

std::uint32_t shared_address(const void* pointer) {
  const auto offset = static_cast<const unsigned char*>(pointer) - machine().shared;
  if (offset < 0 || static_cast<std::size_t>(offset) >= kMostBlocks * kSegment) {
    fault("a shared address is taken of memory that is not shared");
  }
  return static_cast<std::uint32_t>(offset);
}

std::uint32_t shared_address_in(std::uint32_t address, int rank) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= machine().cluster.size()) {
    fault("mapa to a block outside of the cluster");
  }
  return static_cast<std::uint32_t>(address % kSegment + static_cast<std::size_t>(rank) * kSegment);
}

void* shared_pointer(std::uint32_t address, std::size_t bytes) {
  const Machine& m = machine();
  const std::size_t rank = address / kSegment;
  if (rank >= m.cluster.size()) fault("a shared address is in no block of the cluster");
  const Block& block = m.cluster[rank];
  if (block.alive == 0) fault("shared memory of a block that has ended is accessed");
  for (const Variable& variable : block.variables) {
    if (address >= variable.at && address + bytes <= variable.at + variable.bytes) {
      return m.shared + address;
    }
  }
  fault("a shared address is in no variable");
}

void warp_collective(unsigned mask, WarpBody body, void* payload) {
  Thread& thread = *machine().current;
  if ((mask >> (thread.number % kWarp) & 1) == 0) fault("a lane is not in the mask of its call");
  thread.mask = mask;
  thread.body = body;
  thread.payload = payload;
  thread.waits = Waits::kCollective;
  try_collective(thread);
  yield_as(thread.waits);
}

void aligned_collective(WarpBody body, void* payload) {
  const Thread& thread = *machine().current;
  for (int lane = 0; lane < kWarp; ++lane) {
    const Thread* other = lane_of(thread, lane);
    if (other == nullptr || other->waits == Waits::kEnded) {
      fault("an instruction for whole warps, of which a lane has ended");
    }
  }
  warp_collective(~0u, body, payload);
}

int lane_index() { return machine().current->number % kWarp; }

int block_barrier(bool predicate) {
  Thread& thread = *machine().current;
  thread.predicate = predicate;
  thread.waits = Waits::kBlock;
  try_block_barrier(*thread.block);
  yield_as(thread.waits);
  return thread.block->predicates;
}

void named_barrier(int index, int threads) {
  Thread& thread = *machine().current;
  if (index < 0 || index > 15) fault("bar.sync of a barrier that is not in [0, 15]");
  thread.barrier = index;
  thread.barrier_threads = threads;
  thread.waits = Waits::kNamed;
  try_named_barrier(*thread.block, index, threads);
  yield_as(thread.waits);
}

void cluster_barrier() {
  machine().current->waits = Waits::kCluster;
  try_cluster_barrier();
  yield_as(machine().current->waits);
}

void copy_async(std::uint32_t to, const void* from, int bytes, int valid_bytes) {
  Thread& thread = *machine().current;
  const auto size = static_cast<std::size_t>(bytes);
  if (to % size != 0) fault("cp.async to an address that is not aligned");
  if (reinterpret_cast<std::uintptr_t>(from) % size != 0) {
    fault("cp.async from an address that is not aligned");
  }
  AsyncCopy copy{to, bytes, {}};
  if (valid_bytes > 0) std::memcpy(copy.data, from, static_cast<std::size_t>(valid_bytes));
  std::memset(shared_pointer(to, size), kNan, size);
  thread.copies.back().push_back(copy);
}

void commit_copies() { machine().current->copies.emplace_back(); }

void wait_for_copies(int pending_groups) {
  auto& groups = machine().current->copies;
  const auto kept = static_cast<std::size_t>(pending_groups) + 1;  // and the open one
  if (groups.size() <= kept) return;
  const auto end = groups.end() - static_cast<std::ptrdiff_t>(kept);
  for (auto group = groups.begin(); group != end; ++group) {
    for (const AsyncCopy& copy : *group) {
      const auto size = static_cast<std::size_t>(copy.bytes);
      std::memcpy(shared_pointer(copy.to, size), copy.data, size);
    }
  }
  groups.erase(groups.begin(), end);
}

}  // namespace bev::cuda_emulation

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  using namespace bev::cuda_emulation;
  if (value < 0 || static_cast<std::size_t>(value) > device().shared_memory) {
    return cudaErrorInvalidValue;
  }
  machine().dynamic_limits[kernel] = value;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = bev::cuda_emulation::device().arch;
  return cudaSuccess;
}
