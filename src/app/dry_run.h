// `train --dry-run`: reports the model, layout, memory and FLOPs of a resolved configuration
// without starting a run.
#pragma once

#include <string>

#include "app/run_config.h"
#include "plan/memory.h"

namespace bev {

// The memory plan of the largest iteration of the run.
MemoryPlan planned_memory(const RunConfig& run);

// Human-readable report: the configuration by section, the model, the run, the mesh and memory by
// rank.
std::string dry_run_text(const RunConfig& run);

// One line of JSON with the same content: {"config": {flag: value}, "parameters": N,
// "embedding_parameters": N, "layers": [{"mixer", "ffn", "window", "rope"}], "stages": [{"stage",
// "pp", "chunk", "first_layer", "end_layer", "embedding", "head", "mtp_depths"}],
// "flops_per_iteration": X, "megatron_flops_per_iteration": X, "iterations": N, "samples": N,
// "tokens": N, "batch": {..}, "mesh": {..}, "ranks": [{"rank", "tp", "cp", "dp", "pp",
// "parameters", "weights", "gradients", "optimizer", "activations", "total", "host_optimizer",
// "host_activations"}], "fits_machine": bool (not for CUDA)}. Sizes are bytes; total is device
// memory, host memory is separate. A window is null if a layer has none; iterations, samples and
// tokens are null in a run without a length; FLOPs are of the last batch size (plan/flops.h).
std::string dry_run_json(const RunConfig& run);

}  // namespace bev
