// Tensors of a step as safetensors files, for a look at what a model computes: results of ops,
// gradients of activations, gradients of weights.
#pragma once

#include <span>
#include <string>

#include "parallel/engine.h"

namespace bev {

struct TensorFilesSpec {
  std::string folder;  // of checkpoints
  bool activations = false, dgrads = false, wgrads = false;
};

// Runs the step without an update and writes what is wanted of this rank to
// FOLDER/{activations,dgrads,wgrads}/iter_0000010/rank_00000.safetensors. Activations and dgrads
// are called "NUMBER.layer.L.OP" in the order of computation, wgrads by their weight; each rank
// writes its local parts. No step may be in flight. Collective.
void save_step_tensors(Engine& engine, std::span<const MicroBatch> batches, const StepInput& input,
                       const TensorFilesSpec& spec);

}  // namespace bev
