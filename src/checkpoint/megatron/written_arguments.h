// Our configuration and training state as common.pt of Megatron's torch_dist, the counterpart of
// run_arguments.h.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/manifest.h"
#include "models/config.h"

namespace bev {

// How Megatron will run the model. Sizes only count for what common.pt says: tensors load under
// any.
struct MegatronRun {
  std::int64_t tp = 1, pp = 1, ep = 1, etp = 1;
  bool transformer_engine = true;  // modules of Transformer Engine, not --transformer-impl local
};

// The file's bytes. With `optimizer` it has the groups of Adam's parameters and the schedules.
// Throws Error(kConfig) that names the flags of the model which Megatron's arguments cannot
// express.
std::string megatron_common_file(const ModelConfig& model, const Manifest& about,
                                 const MegatronRun& run, Dtype weights, bool optimizer);

}  // namespace bev
