// Shared by DeepSeek and the families that took over its attention or its experts: latents, leading
// dense layers, a sigmoid router with a selection bias and groups, shared experts, an indexer.
#pragma once

#include <cstdint>
#include <vector>

#include "models/families/llama_like.h"

namespace bev {

// Defaults of missing keys; topk 0: the key is required.
struct DeepseekExperts {
  std::int64_t dense_layers = 0, experts = 0, topk = 0, ffn = 0, shared = 1;
  double scaling = 1.0;
};

// Multi-head latent attention.
void read_latent(const HfConfig& hf, ModelConfig& config);
void write_latent(const ModelConfig& config, HfConfig& hf);
// The indexer of sparse attention; `heads` is the default of its heads.
void read_indexer(const HfConfig& hf, std::int64_t heads, ModelConfig& config);
void write_indexer(const ModelConfig& config, HfConfig& hf);

// Marks of MoE layers: all from `dense` on.
std::vector<std::int64_t> expert_layers(std::int64_t dense, std::int64_t layers);
// Experts without their router.
void read_deepseek_experts(const HfConfig& hf, const DeepseekExperts& defaults,
                           ModelConfig& config);
void write_deepseek_experts(const ModelConfig& config, HfConfig& hf);
// The router of V3: sigmoid scores, a bias for the choice, the best two of a group score it.
void read_sigmoid_router(const HfConfig& hf, std::int64_t groups, std::int64_t group_topk,
                         ModelConfig& config);
// The same for presets.
void set_sigmoid_router(MoeConfig& moe);

// Latent attention and experts.
std::vector<WeightRule> latent_weights();
void add_indexer_weights(std::vector<WeightRule>& rules);
// Adds router bias and shared experts to rules with experts.
void add_deepseek_experts(std::vector<WeightRule>& rules);
// Adds the layers of multi-token prediction, which follow the last one of the model, and returns
// the suffixes of the embedding and head that files repeat for them.
void add_mtp_weights(std::vector<WeightRule>& rules);
std::vector<std::string> mtp_ignored();

}  // namespace bev
