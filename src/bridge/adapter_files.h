// Weights of LoRA adapters in peft's folders.
#pragma once

#include <string>

#include "bridge/weight_map.h"
#include "parallel/engine.h"

namespace bev {

// How peft's tensors form the parameters of an adapter, by its number in the model.
WeightMap adapter_map(const ModelConfig& model, std::size_t number = 0);

// Loads an adapter of a model that has the settings of the folder; every rank reads only its shard.
// Throws Error(kInput) that lists tensors which are missing, of another shape, or unknown to the
// model.
void load_adapter(RankModel& model, const std::string& folder, std::size_t number = 0);
// The same for a model in training; also sets the master weights.
void load_adapter(Engine& engine, const std::string& folder);

// Labels of the head for sequence classification that the folder has; 0: none.
std::int64_t adapter_labels(const std::string& folder);

// Writes the folder, with the adapters in the model's dtype; `base` names the model that they are
// for. Collective; rank 0 writes.
void export_adapter(RankModel& model, const std::string& folder, const std::string& base);

}  // namespace bev
