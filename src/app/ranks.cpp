#include "app/ranks.h"

#include <algorithm>
#include <thread>

#include "backend/cpu/cpu_kernels.h"
#include "base/error.h"

namespace bev {

const Kernels& device_kernels(const RuntimeConfig& runtime) {
  BEV_CHECK(runtime.device != DeviceKind::kCuda, ErrorKind::kConfig,
            "--device cuda: this version computes on the CPU only; use --device cpu");
  return cpu_kernels();
}

int threads_per_rank(const RuntimeConfig& runtime, std::int64_t ranks) {
  // Threads beyond the cores only wait for each other.
  constexpr std::int64_t kThreadsPerCore = 16;
  auto cores = std::max<std::int64_t>(std::thread::hardware_concurrency(), 1);
  BEV_CHECK(runtime.num_threads <= kThreadsPerCore * cores, ErrorKind::kConfig,
            "--num-threads: ", runtime.num_threads, " threads for ", cores, " cores; use at most ",
            kThreadsPerCore * cores);
  std::int64_t threads = runtime.num_threads > 0 ? runtime.num_threads : cores;
  return static_cast<int>(std::max<std::int64_t>(threads / ranks, 1));
}

EngineOptions engine_options(const RunConfig& run, int threads) {
  EngineOptions options;
  options.model = run.model;
  options.parallel = run.parallel;
  options.optim = run.optim;
  options.dtype = run.precision.model_dtype();
  options.seed = static_cast<std::uint64_t>(run.runtime.seed);
  options.threads = threads;
  return options;
}

}  // namespace bev
