// How a model is built for a layout and a precision; nothing of it changes the result.
#pragma once

#include <cstdint>
#include <vector>

#include "models/fp8_config.h"
#include "nn/attention.h"
#include "ops/expert_exchange.h"

namespace bev {

// What is not kept for the backward but recomputed (activation checkpointing). Results are equal to
// the bit.
struct RecomputePolicy {
  // Whole layers: groups of `layers_per_unit` from the stage's first layer on, at most
  // `full_layers` layers of the stage (-1: all). layers_per_unit 0: no whole layers.
  std::int64_t layers_per_unit = 0;
  std::int64_t full_layers = -1;
  // Parts of the other layers.
  bool core_attention = false;
  bool norms = false;
  bool activations = false, expert_activations = false;
  bool mlp = false, experts = false;  // all of a dense MLP, of a layer of experts
  bool shared_experts = false;
  bool latent_up = false;  // heads of latent attention, from its latents on
};

struct BuildOptions {
  TensorParallel tensor_parallel;
  RecomputePolicy recompute;
  Fp8Config fp8;
  std::vector<ContextExchange> context = {ContextExchange::kRing};  // one, or one per layer
  ExpertParallel experts;
  bool shared_embedding = false;  // other ranks of the pipeline hold the word embeddings too
};

}  // namespace bev
