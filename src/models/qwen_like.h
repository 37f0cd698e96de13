// What Qwen 2 and 3 share: windows in the upper layers, a large base and vocabulary.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/llama_like.h"

namespace bev {

// `head_size` 0: hidden size / heads where config.json does not say.
ModelConfig read_qwen(const HfConfig& hf, std::string_view family, std::int64_t head_size);
void write_qwen(const ModelConfig& config, HfConfig& hf);
// The experts of Qwen 2 and 3, and what the family takes for missing keys.
struct QwenExperts {
  std::int64_t experts, topk, ffn;
};
void read_qwen_experts(const HfConfig& hf, const QwenExperts& defaults, ModelConfig& config);
// All but their number, whose key differs.
void write_qwen_experts(const ModelConfig& config, HfConfig& hf);
// The family's block with the epsilon and base of the published models.
ModelConfig qwen_block(std::string_view family);

}  // namespace bev
