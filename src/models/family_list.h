// The families, each from the file of its name.
#pragma once

#include "models/family.h"

namespace bev {

ModelFamily deepseek_v2_family();
ModelFamily deepseek_v3_family();
ModelFamily gemma2_family();
ModelFamily gemma3_family();
ModelFamily gpt2_family();
ModelFamily gpt_neox_family();
ModelFamily gpt_oss_family();
ModelFamily llama_family();
ModelFamily mistral_family();
ModelFamily mixtral_family();
ModelFamily phi3_family();
ModelFamily qwen2_family();
ModelFamily qwen2_moe_family();
ModelFamily qwen3_family();
ModelFamily qwen3_moe_family();

}  // namespace bev
