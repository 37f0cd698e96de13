// Chooses the model of a run from a Hugging Face folder, a preset, a checkpoint and flags.
#pragma once

#include "app/run_config.h"

namespace bev {

// The model configuration comes from --hf-model, --preset or flags, without these from the
// checkpoint of --load. Flags may override a preset, but not a folder.
void choose_model(RunConfig& run, const FieldList& fields, Options& options);

}  // namespace bev
