// adapter_config.json of peft's folders, from and to our settings.
#pragma once

#include <string>

#include "models/config.h"

namespace bev {

inline constexpr const char* kAdapterConfigName = "adapter_config.json";
inline constexpr const char* kAdapterWeightsName = "adapter_model.safetensors";

// The settings of a folder. Fields that peft may have added are ignored; throws Error(kInput)
// naming a field that asks for other mathematics than ours.
LoraConfig read_adapter_config(const std::string& folder);

// Text of the file: the fields that every version of peft knows, others only where they differ from
// peft's defaults. `base` names the model that the adapter is for.
std::string adapter_config_text(const ModelConfig& model, const std::string& base);

}  // namespace bev
