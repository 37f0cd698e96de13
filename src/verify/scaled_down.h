// Small models for verify: a layout's mistakes do not depend on the model's size.
#pragma once

#include <vector>

#include "models/config.h"
#include "parallel/config.h"

namespace bev {

// The same kind of model, small. `model` is canonical and fits the layouts.
ModelConfig scaled_down(const ModelConfig& model, const std::vector<ParallelConfig>& layouts);

}  // namespace bev
