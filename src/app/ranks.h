// Starts the ranks of a command on this machine.
#pragma once

#include "app/run_config.h"
#include "comm/world.h"
#include "kernels/kernels.h"
#include "parallel/engine.h"

namespace bev {

// Kernels of the device that was asked for; Error(kConfig) when it cannot be used.
const Kernels& device_kernels(const RuntimeConfig& runtime);
// CPU threads of each of `ranks` ranks.
int threads_per_rank(const RuntimeConfig& runtime, std::int64_t ranks);

// What a rank is started with.
struct RankStart {
  World& world;
  const Kernels& kernels;
  int threads = 1;  // of this rank
};

// The engine that a resolved configuration asks for.
EngineOptions engine_options(const RunConfig& run, int threads);

// Runs body(RankStart) on every rank.
template <class Body>
void run_ranks(const ParallelConfig& parallel, const RuntimeConfig& runtime, const Body& body) {
  const Kernels& kernels = device_kernels(runtime);
  std::int64_t ranks = mesh_shape(parallel).size();
  int threads = threads_per_rank(runtime, ranks);
  ThreadWorldOptions options;
  options.timeout_seconds = parallel.distributed_timeout_minutes * 60;
  run_thread_ranks(static_cast<int>(ranks), options, [&](World& world) {
    body(RankStart{world, kernels, threads});
  });
}

}  // namespace bev
