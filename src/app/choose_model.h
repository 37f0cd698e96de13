// The model of a run: what its folder, its preset and its flags say together.
#pragma once

#include "app/run_config.h"

namespace bev {

// The model's shape comes from --hf-model, --preset or flags; flags change a preset, not a folder.
void choose_model(RunConfig& run, const FieldList& fields, Options& options);

}  // namespace bev
