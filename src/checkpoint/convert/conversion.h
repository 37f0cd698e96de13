// A training state written as a checkpoint, without a model: tensor by tensor, in memory that does
// not depend on its size.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/convert/part_files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/megatron/written_arguments.h"
#include "models/config.h"

namespace bev {

struct Conversion {
  StateSource& source;
  const ModelConfig& model;
  // Position, configuration, and since when moments are there; its tensors are those of `source`.
  const Manifest& about;
  std::optional<Dtype> dtype = {};  // of the weights; nullopt: as they are
  Storage& storage;
  std::string out;  // folder of a run
  std::size_t threads = 1;
  PartSizes sizes = {};
};

// The tensor that a weight is read from in this dtype: its master weight if it was rounded.
std::string weight_source(const Conversion& job, const std::string& param, Dtype dtype);

// Both return the folder of the step. `write_own` writes our own format.
std::string write_own(const Conversion& job);
// Megatron's torch_dist: weights and, if the source has Adam's moments, optimizer state. Parts of
// the source that it has no place for are added to `left_out`. Without moments the weights are a
// release. Throws Error(kConfig) if Megatron's arguments cannot describe the model.
std::string write_torch_dist(const Conversion& job, const MegatronRun& run,
                             std::vector<std::string>& left_out);

}  // namespace bev
