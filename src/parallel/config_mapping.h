// From the layout's settings to what meshes and models are built of.
#pragma once

#include "comm/mesh.h"
#include "models/build_options.h"
#include "models/config.h"
#include "parallel/config.h"

namespace bev {

MeshShape mesh_shape(const ParallelConfig& config);
// With the groups that this model needs.
MeshShape mesh_shape(const ParallelConfig& config, const ModelConfig& model);
BuildOptions build_options(const ParallelConfig& config);

}  // namespace bev
