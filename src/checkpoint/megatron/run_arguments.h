// Megatron's arguments (args of common.pt or model_optim_rng.pt, an argparse.Namespace) as our
// configuration and training state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bridge/torch/torch_archive.h"
#include "checkpoint/manifest.h"
#include "models/config.h"

namespace bev {

// The model; `vocab_rows` are the rows of the stored embedding. Throws Error(kInput) that begins
// with `where` for an argument that would change the computation and has no counterpart here.
ModelConfig model_of_arguments(const PickleValue& args, std::int64_t vocab_rows,
                               const std::string& where);

// Values of our flags, by section, for all arguments that are flags here and have a value. Those of
// the model are `model`'s. Values that our flags do not take are listed in `ignored`.
std::vector<ConfigEntry> config_of_arguments(const PickleValue& args, const ModelConfig& model,
                                             std::vector<std::string>& ignored);

// "tp 2, pp 4": the parallel sizes beyond 1; "one rank" if there are none.
std::string layout_of_arguments(const PickleValue& args);

// What a folder has besides tensors; null where it has none. Values of several ranks or optimizers
// are equal, so the first counts.
struct CommonState {
  const PickleValue* args = nullptr;
  const PickleValue* iteration = nullptr;
  const PickleValue* scheduler = nullptr;  // opt_param_scheduler
  // An optimizer: param_groups, which have the step, and grad_scaler with the loss scale.
  const PickleValue* optimizer = nullptr;
  const TorchArchive* tensors = nullptr;  // that has the tensors in these values
};
TrainingState state_of(const CommonState& common);

}  // namespace bev
