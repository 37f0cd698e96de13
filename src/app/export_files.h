// The files other than weights in an exported Hugging Face folder.
#pragma once

#include <vector>

#include "app/run_config.h"
#include "bridge/hf_model.h"

namespace bev {

// Returns config.json for weights in `dtype`, the tokenizer, and generation_config.json with the
// EOS token.
std::vector<ExportFile> export_files(const RunConfig& run, Dtype dtype);

}  // namespace bev
