// Starts the ranks of a command, in this process or as its share of several.
#pragma once

#include "app/run_config.h"
#include "base/function_ref.h"
#include "comm/launch.h"
#include "comm/world.h"
#include "kernels/kernels.h"
#include "parallel/engine.h"

namespace bev {

// Kernels of the device that was asked for; Error(kConfig) when it cannot be used.
const Kernels& device_kernels(const RuntimeConfig& runtime);
// Of the device that was asked for, there or not; null where this build has none for it.
const Kernels* planned_kernels(const RuntimeConfig& runtime);
// CPU threads of each of `ranks` ranks of this process.
int threads_per_rank(const RuntimeConfig& runtime, std::int64_t ranks, const Launch& launch = {});

// What a rank is started with.
struct RankStart {
  World& world;
  const Kernels& kernels;
  int threads = 1;     // of this rank
  bool first = false;  // of the ranks of this process
  int local_rank = 0;  // on this machine
};

// The engine that a resolved configuration asks for.
EngineOptions engine_options(const RunConfig& run, int threads, int local_rank = 0);

// Runs body(RankStart) on every rank of this process. A failure of a run of several processes ends
// them all, here and now, told once.
void run_ranks(const Launch& launch, const ParallelConfig& parallel, const RuntimeConfig& runtime,
               FunctionRef<void(const RankStart& start)> body);

}  // namespace bev
