// The beginning of a run with experts from a dense model (Megatron's upcycling, arXiv 2410.07524).
// The MLP is cut into `granularity` parts of its inner width; expert e gets part e % granularity,
// and the experts of a whole MLP share a row of the router, so that tokens choose them together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/engine.h"
#include "train/checkpoint_config.h"

namespace bev {

// The model whose weights `model` is made of.
ModelConfig dense_model(const ModelConfig& model, std::int64_t granularity);

// Why experts of that shape cannot be made of a dense MLP.
std::vector<std::string> upcycling_problems(const ModelConfig& model, std::int64_t granularity);

// Fills the engine's weights from the checkpoint of --load, or from the Hugging Face folder
// `hf_model` where there is none; what a dense model does not have stays as the seed drew it.
// All ranks call it. Error(kInput) when the weights do not fit.
void upcycle(Engine& engine, const CheckpointConfig& config, const std::string& hf_model);

}  // namespace bev
