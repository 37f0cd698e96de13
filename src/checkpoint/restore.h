// Brings an engine to the state of a checkpoint, whatever layouts and precisions the two have:
// every rank reads the boxes that it needs.
#pragma once

#include "checkpoint/reader.h"
#include "parallel/engine.h"

namespace bev {

// Error(kInput) listing every tensor that is missing or of another shape before anything is
// changed, or naming the file and tensor that cannot be read. With the optimizer its moments and
// main parameters are read too; without, the main parameters follow from the weights. Ranks do not
// wait for each other in here.
void restore_tensors(Engine& engine, CheckpointReader& reader, bool with_optimizer);

}  // namespace bev
