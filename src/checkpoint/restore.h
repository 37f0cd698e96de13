// Restores an engine from a checkpoint of any layout and precision (resharding): every rank reads
// the boxes that it needs.
#pragma once

#include <vector>

#include "checkpoint/reader.h"
#include "parallel/engine.h"

namespace bev {

// Throws Error(kInput) that lists every missing or differently shaped tensor before anything is
// changed, or names the file and tensor that cannot be read. With the optimizer, moments and master
// weights are read too; without it, master weights are copied from the weights. Not collective.
void restore_tensors(Engine& engine, CheckpointReader& reader, bool with_optimizer);

// Shards that this rank would read (indices in the manifest), after the same checks.
std::vector<bool> shards_to_restore(Engine& engine, const CheckpointReader& reader,
                                    bool with_optimizer);

}  // namespace bev
