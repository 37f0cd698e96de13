// The names of a parameter's tensors, by the rules of its family.
#pragma once

#include "autograd/param.h"
#include "bridge/weight_map.h"

namespace bev {

// Error(kConfig) where the family has no such weights.
ParamMapping map_param(const Param& param, const ModelConfig& config, const ModelFamily& family);

// The single tensor is the parameter's transpose.
bool transposed(const ParamMapping& mapping);
// It is one of experts as expert_columns.h has them.
bool has_columns(const ParamMapping& mapping);

}  // namespace bev
