// How a model is built for a layout and a precision. Parallelism and recompute do not change
// results.
#pragma once

#include <cstdint>
#include <vector>

#include "models/fp8_config.h"
#include "nn/attention.h"
#include "ops/moe/expert_exchange.h"

namespace bev {

// Activation checkpointing: what is recomputed in the backward instead of saved. Results are
// bitwise equal.
struct RecomputePolicy {
  // Full recompute: units of `layers_per_unit` layers from the first layer of the stage, at most
  // `full_layers` layers of the stage (-1: all). layers_per_unit 0: no full recompute.
  std::int64_t layers_per_unit = 0;
  std::int64_t full_layers = -1;
  // Selective recompute in the other layers.
  bool core_attention = false;
  bool norms = false;
  bool activations = false, expert_activations = false;
  bool mlp = false, experts = false;  // a whole dense MLP, a whole MoE layer
  bool shared_experts = false;
  bool latent_up = false;  // MLA: the up-projections from the latents
};

struct BuildOptions {
  TensorParallel tensor_parallel;
  RecomputePolicy recompute;
  Fp8Config fp8;
  std::vector<ContextExchange> context = {ContextExchange::kRing};  // one, or one per layer
  ExpertParallel experts;
  bool shared_embedding = false;  // other pipeline ranks hold the word embeddings too
};

}  // namespace bev
