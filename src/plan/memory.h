// How much memory each rank of a training run needs, by kind, without starting it. Weights,
// gradients and optimizer state follow from the declared parameters and the store's bucket rules;
// activations from running the model's own code on a phantom machine (plan/phantom.h). All are
// equal to the byte to what the engine's arena counts.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/mesh.h"
#include "kernels/kernels.h"
#include "models/config.h"
#include "models/fp8_config.h"
#include "optim/config.h"
#include "parallel/config.h"
#include "tensor/dtype.h"

namespace bev {

struct MemoryQuery {
  ModelConfig model;
  ParallelConfig parallel;  // resolved
  OptimConfig optim;
  Dtype dtype = Dtype::kF32;
  Fp8Config fp8;
  std::int64_t seq_length = 0;
  std::int64_t micro_batch_size = 1;
  std::int64_t micro_batches = 1;   // of a rank in one iteration
  const Kernels* device = nullptr;  // whose rules about memory count; null: none has any
};

struct RankMemory {
  std::int64_t rank = 0;
  MeshCoordinate at;
  std::int64_t parameters = 0;  // elements of this rank's stage and tensor-parallel part
  std::int64_t in_flight = 0;   // micro-batches times stages of the rank that wait for a backward
  // Bytes. Activations are the peak of all that comes and goes in an iteration: what waits for its
  // backward, what is made on the way (logits, gathered weights, gradients) and the batch itself.
  std::int64_t weights = 0, gradients = 0, optimizer = 0, activations = 0;
  // Of host memory, what is offloaded; of activations the most at a time.
  std::int64_t host_optimizer = 0, host_activations = 0;

  std::int64_t host() const { return host_optimizer + host_activations; }
  // On the device.
  std::int64_t total() const { return weights + gradients + optimizer + activations; }
};

struct MemoryPlan {
  std::int64_t parameters = 0;            // of the whole model, a tied table once
  std::int64_t embedding_parameters = 0;  // word and position tables and an untied output layer
  std::vector<RankMemory> ranks;          // in rank order
};

MemoryPlan plan_memory(const MemoryQuery& query);

}  // namespace bev
