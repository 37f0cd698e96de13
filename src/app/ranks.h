// Starts the ranks of a command as threads of this process, alone or as one of several processes.
#pragma once

#include "app/run_config.h"
#include "base/function_ref.h"
#include "comm/launch.h"
#include "comm/world.h"
#include "kernels/kernels.h"
#include "parallel/engine.h"

namespace bev {

// Kernels of the requested device. Throws Error(kConfig) if it cannot be used.
const Kernels& device_kernels(const RuntimeConfig& runtime);
// Calls body() on process 0, before the ranks run; if it throws Error, processes that would wait
// for process 0 are told first.
void on_process_0(const Launch& launch, FunctionRef<void()> body);
// Throws Error(kConfig) if the requested device cannot be used, or not for this run.
void check_device(const RunConfig& run);
// Throws Error(kConfig) if the optimizer does not run on the device of these kernels.
void check_optimizer_device(OptimizerKind optimizer, const Kernels& kernels);
// Kernels of the requested device, whether it is present or not; null if this build does not
// support it.
const Kernels* planned_kernels(const RuntimeConfig& runtime);
// The GPUs of this machine; without one, or without CUDA in this build, only `used` may be set, for
// plans.
struct GpuInfo {
  bool used = false;  // the run computes on GPUs
  std::int64_t count = 0;
  std::string name = {};    // of the first
  double memory_bytes = 0;  // of the first
};
GpuInfo gpu_info(const RuntimeConfig& runtime);

// The runtime settings of a run with the threads that pay: a rank on the CPU takes one more only
// where its kernels have enough work for it. `flops` are those of a micro-batch, forward and
// backward. --num-threads overrides; results do not depend on it.
RuntimeConfig paying_threads(const RunConfig& run, const Launch& launch, double flops);
// CPU threads of each of the `ranks` ranks of this process.
int threads_per_rank(const RuntimeConfig& runtime, std::int64_t ranks, const Launch& launch = {});

// Arguments of a rank.
struct RankStart {
  World& world;
  const Kernels& kernels;
  int threads = 1;     // of this rank
  bool first = false;  // first rank of this process
  int local_rank = 0;  // index on this machine
};

// The engine options of a resolved configuration.
EngineOptions engine_options(const RunConfig& run, int threads, int local_rank = 0);

// Runs body(RankStart) on every rank of this process. If a run of several processes fails, all of
// its processes end immediately, and the error is reported once.
void run_ranks(const Launch& launch, const ParallelConfig& parallel, const RuntimeConfig& runtime,
               FunctionRef<void(const RankStart& start)> body);

}  // namespace bev
