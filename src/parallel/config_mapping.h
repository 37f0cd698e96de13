// Maps ParallelConfig to the shape of the mesh and to the options that models are built with.
#pragma once

#include "comm/mesh.h"
#include "models/build_options.h"
#include "models/config.h"
#include "parallel/config.h"

namespace bev {

MeshShape mesh_shape(const ParallelConfig& config);
// Includes the process groups that this model needs.
MeshShape mesh_shape(const ParallelConfig& config, const ModelConfig& model);
BuildOptions build_options(const ParallelConfig& config);

}  // namespace bev
