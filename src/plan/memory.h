// Memory planning: bytes that each rank of a training run needs, by kind, without starting it.
// Weights, gradients and optimizer state follow from the declared parameters and the bucket rules
// of the store; activations from running the code of the model on a phantom device
// (plan/phantom.h). All are equal to the byte to what the arena of the engine counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "comm/mesh.h"
#include "kernels/kernels.h"
#include "models/base_quantization.h"
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
  BaseQuantization base;
  std::int64_t seq_length = 0;
  std::int64_t micro_batch_size = 1;
  std::int64_t micro_batches = 1;    // per rank and iteration
  bool log_probs = false;            // the objective is one of the log-probabilities of completions
  bool reference = false;            // and compares with a second model, which is frozen
  bool rollouts = false;             // completions are sampled between steps
  bool max_attention_logit = false;  // steps report it
  const Kernels* device = nullptr;   // provides memory rules of its kernels; null: none
};

struct RankMemory {
  std::int64_t rank = 0;
  MeshCoordinate at;
  std::int64_t parameters = 0;  // elements of the stage and tensor-parallel part of this rank
  std::int64_t in_flight = 0;   // peak number of micro-batches x stages that await their backward
  // Bytes. Activations are the peak of all temporary memory of an iteration: activations that await
  // their backward, temporaries (logits, gathered weights, gradients) and the batch itself.
  std::int64_t weights = 0, gradients = 0, optimizer = 0, activations = 0;
  // Sharded weights (ZeRO-3) that are gathered while completions are sampled, before the
  // activations of a step exist.
  std::int64_t gathered = 0;
  // Offloaded bytes in host memory; for activations the peak.
  std::int64_t host_optimizer = 0, host_activations = 0;

  std::int64_t host() const { return host_optimizer + host_activations; }
  // Bytes on the device.
  std::int64_t total() const {
    return weights + gradients + optimizer + std::max(activations, gathered);
  }
};

struct MemoryPlan {
  std::int64_t parameters = 0;            // of the whole model; a tied embedding counts once
  std::int64_t embedding_parameters = 0;  // word and position embeddings and an untied output layer
  std::vector<RankMemory> ranks;          // in rank order
};

MemoryPlan plan_memory(const MemoryQuery& query);

}  // namespace bev
