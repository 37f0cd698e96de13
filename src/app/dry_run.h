// `train --dry-run`: what a resolved configuration would run and what it would take, without
// starting anything.
#pragma once

#include <string>

#include "app/run_config.h"
#include "plan/memory.h"

namespace bev {

// Of the largest iteration of the run.
MemoryPlan planned_memory(const RunConfig& run);

// For people: the configuration by section, the model, the run, the mesh and memory by rank.
std::string dry_run_text(const RunConfig& run);

// One line of JSON with the same content: {"config": {flag: value}, "parameters": N,
// "embedding_parameters": N, "layers": [{"mixer", "ffn", "window", "rope"}], "stages": [{"stage",
// "pp", "chunk", "first_layer", "end_layer", "embedding", "head", "mtp_depths"}],
// "flops_per_iteration": X, "megatron_flops_per_iteration": X, "iterations": N, "samples": N,
// "tokens": N, "batch": {..}, "mesh": {..}, "ranks": [{"rank", "tp", "cp", "dp", "pp",
// "parameters", "weights", "gradients", "optimizer", "activations", "total", "host_optimizer",
// "host_activations"}], "fits_machine": bool (not for CUDA)}. Sizes are bytes, total on the device
// and those of the host beside it; a window is null where a layer has none; iterations, samples and
// tokens are null in a run without a length; FLOPs are of the last batch size (train/flops.h).
std::string dry_run_json(const RunConfig& run);

}  // namespace bev
