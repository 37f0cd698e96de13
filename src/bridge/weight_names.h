// Names of a parameter's Hugging Face tensors, by the rules of its model family.
#pragma once

#include "autograd/param.h"
#include "bridge/weight_map.h"

namespace bev {

// Throws Error(kConfig) if the family has no such weights.
ParamMapping map_param(const Param& param, const ModelConfig& config, const ModelFamily& family);

// True if the single tensor is the parameter's transpose.
bool transposed(const ParamMapping& mapping);
// True if it is an expert parameter in the layout of expert_columns.h.
bool has_columns(const ParamMapping& mapping);

}  // namespace bev
