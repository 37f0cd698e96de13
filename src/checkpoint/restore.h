// Brings an engine to the state of a checkpoint, whatever layouts and precisions the two have:
// every rank reads the boxes that it needs.
#pragma once

#include <vector>

#include "checkpoint/reader.h"
#include "parallel/engine.h"

namespace bev {

// Error(kInput) listing every tensor that is missing or of another shape before anything is
// changed, or naming the file and tensor that cannot be read. With the optimizer its moments and
// main parameters are read too; without, the main parameters follow from the weights. Ranks do not
// wait for each other in here.
void restore_tensors(Engine& engine, CheckpointReader& reader, bool with_optimizer);

// The shards that this rank would read, by their place in the manifest; the same errors before
// that.
std::vector<bool> shards_to_restore(Engine& engine, const CheckpointReader& reader,
                                    bool with_optimizer);

}  // namespace bev
