// What stands beside the weights of a run when they are exported.
#pragma once

#include <vector>

#include "app/run_config.h"
#include "bridge/hf_model.h"

namespace bev {

// config.json for weights in `dtype`, the tokenizer, and where texts end.
std::vector<ExportFile> export_files(const RunConfig& run, Dtype dtype);

}  // namespace bev
