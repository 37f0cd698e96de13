#include "base/thread_pool.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <new>
#include <sstream>
#include <system_error>
#include <thread>
#include <vector>

#include "base/control_group.h"
#include "base/divide.h"
#include "base/error.h"

namespace bev {

namespace {
// Spin iterations of an idle worker before it sleeps: kernels follow each other within
// microseconds.
constexpr int kSpins = 4000;

// Scratch memory is aligned to huge pages, because GEMMs stream through all of it (TLB misses).
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::align_val_t kAlignment{kHugePage};
struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
};

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// Smallest CPU quota of the control groups around this process.
int cgroup_threads() {
  int threads = kNoQuota;
  for (const std::string& group : control_groups()) {
    threads = std::min(threads, quota_threads(group_text(group, "cpu.max")));
  }
  return threads;
}
}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<std::uint64_t> generation{0};
  std::atomic<bool> stop{false};
  std::atomic<int> busy{0};  // workers that have not finished the current generation
  std::atomic<std::int64_t> next{0};
  std::int64_t pieces = 0;
  const FunctionRef<void(std::int64_t)>* body = nullptr;
  std::unique_ptr<std::byte, FreeAligned> scratch;
  std::size_t scratch_bytes = 0;

  void stop_and_join() {
    {
      std::lock_guard lock(mutex);
      stop.store(true);
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void work_off() {
    for (std::int64_t piece = next.fetch_add(1); piece < pieces; piece = next.fetch_add(1)) {
      (*body)(piece);
    }
  }

  void worker_loop() {
    std::uint64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && generation.load() == seen && !stop.load(); ++spin)
        relax();
      if (generation.load() == seen && !stop.load()) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return generation.load() != seen || stop.load(); });
      }
      if (stop.load()) return;
      seen = generation.load();
      work_off();
      busy.fetch_sub(1);
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  BEV_CHECK(threads >= 1, ErrorKind::kConfig, "thread pool: at least 1 thread, got ", threads);
  for (int i = 1; i < threads; ++i) {
    try {
      state_->workers.emplace_back([state = state_.get()] { state->worker_loop(); });
    } catch (const std::system_error& error) {
      state_->stop_and_join();
      BEV_FAIL(ErrorKind::kDevice, "thread pool: thread ", i + 1, " of ", threads,
               " could not be started: ", error.what(), "; use a smaller --num-threads");
    }
  }
}

int quota_threads(const std::string& cpu_max) {
  std::istringstream words(cpu_max);
  double quota = 0, period = 0;
  if (!(words >> quota >> period) || quota <= 0 || period <= 0) return kNoQuota;
  return static_cast<int>(std::min<double>(std::ceil(quota / period), kNoQuota));
}

int machine_threads() {
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) threads = CPU_COUNT(&allowed);
  return std::max(1, std::min(threads, cgroup_threads()));
}

ThreadPool::~ThreadPool() { state_->stop_and_join(); }

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

std::byte* ThreadPool::scratch(std::size_t bytes) {
  if (bytes > state_->scratch_bytes) {
    state_->scratch.reset();
    state_->scratch_bytes = 0;
    bytes = round_up(bytes, kHugePage);
    state_->scratch.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
    ::madvise(state_->scratch.get(), bytes, MADV_HUGEPAGE);
    state_->scratch_bytes = bytes;
  }
  return state_->scratch.get();
}

void ThreadPool::run(std::int64_t pieces, FunctionRef<void(std::int64_t)> body) {
  if (pieces <= 1 || state_->workers.empty()) {
    for (std::int64_t piece = 0; piece < pieces; ++piece) body(piece);
    return;
  }
  state_->pieces = pieces;
  state_->body = &body;
  state_->next.store(0);
  state_->busy.store(static_cast<int>(state_->workers.size()));
  {
    std::lock_guard lock(state_->mutex);
    state_->generation.fetch_add(1);
  }
  state_->wake.notify_all();
  state_->work_off();
  for (int spin = 0; state_->busy.load() != 0; ++spin) {
    if (spin < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace bev
