// Shared by Qwen 2 and 3: windows in the upper layers, a large RoPE base and vocabulary.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/families/llama_like.h"

namespace bev {

// head_size 0: hidden size / heads if config.json does not say.
ModelConfig read_qwen(const HfConfig& hf, std::string_view family, std::int64_t head_size);
void write_qwen(const ModelConfig& config, HfConfig& hf);
// Defaults of missing MoE keys of a family.
struct QwenExperts {
  std::int64_t experts = 0, topk = 0, ffn = 0;
  bool normalised = false;
};
void read_qwen_experts(const HfConfig& hf, const QwenExperts& defaults, ModelConfig& config);
// Writes the MoE settings.
void write_qwen_experts(const ModelConfig& config, HfConfig& hf);
// Block with the norm epsilon and RoPE base of the published models.
ModelConfig qwen_block(std::string_view family);

}  // namespace bev
