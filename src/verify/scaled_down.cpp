#include "verify/scaled_down.h"

#include <algorithm>
#include <numeric>

#include "base/divide.h"
#include "parallel/pipeline/schedule.h"

namespace bev {

namespace {

// The flags of the first layers. If they are all equal, the last one is flipped, so that both kinds
// occur.
std::vector<std::int64_t> first_layers(std::vector<std::int64_t> layers, std::int64_t count) {
  if (layers.empty()) return layers;
  layers.resize(static_cast<std::size_t>(count));
  bool alike = std::ranges::all_of(layers, [&](auto mark) { return mark == layers[0]; });
  if (alike) layers.back() = 1 - layers.back();
  return layers;
}

// The kinds of the first layers; those that are not among them take the places of repeated ones.
std::string first_kinds(const std::string& pattern, std::int64_t count) {
  std::string kinds = pattern.substr(0, static_cast<std::size_t>(count));
  for (char kind : pattern) {
    if (kinds.find(kind) != kinds.npos) continue;
    auto repeated = std::find_if(kinds.rbegin(), kinds.rend(),
                                 [&](char one) { return std::ranges::count(kinds, one) > 1; });
    if (repeated != kinds.rend()) *repeated = kind;
  }
  return kinds;
}

// A few small heads, shared as the model's are.
DeltaConfig few_heads(const DeltaConfig& delta, std::int64_t tp) {
  DeltaConfig few = delta;
  const std::int64_t shared = delta.num_value_heads / delta.num_key_heads;
  few.num_key_heads = tp * std::clamp<std::int64_t>(delta.num_key_heads / tp, 1, 2);
  few.num_value_heads = few.num_key_heads * std::min<std::int64_t>(shared, 2);
  // Heads of few dims are often short, and their normalisation makes small differences large.
  few.key_head_dim = std::min<std::int64_t>(delta.key_head_dim, 24);
  few.value_head_dim = std::min<std::int64_t>(delta.value_head_dim, 10);
  return few;
}

// Parts that heads are split into: over tp, and over the Ulysses ranks of cp.
std::int64_t head_parts(const ParallelConfig& layout) {
  std::int64_t parts = layout.tensor_model_parallel_size;
  for (const std::string& type : layout.cp_comm_type) {
    if (type == "a2a") return parts * layout.context_parallel_size;
    if (type == "a2a+p2p") parts *= layout.hierarchical_context_parallel_sizes.front();
  }
  return parts;
}

// Number of stages of the pipeline.
std::int64_t stage_count(const ParallelConfig& layout) {
  std::int64_t per_rank = layout.num_virtual_stages_per_pipeline_rank;
  if (per_rank == 0) per_rank = traits_of(layout.pipeline_schedule).default_chunks();
  return layout.pipeline_model_parallel_size * per_rank;
}

// A few small experts with the model's routing rule.
MoeConfig few_experts(const MoeConfig& moe, std::int64_t ffn_size, std::int64_t tp) {
  MoeConfig few = moe;
  if (!moe.any()) return few;
  auto narrow = [&](std::int64_t size) {
    return std::min(ceil_div(size, tp), std::int64_t{6}) * tp;
  };
  few.ffn_hidden_size = narrow(ffn_size);
  few.shared_expert_size = narrow(moe.shared_expert_size);
  if (moe.num_groups > 1) {
    std::int64_t size = std::min<std::int64_t>(moe.num_experts / moe.num_groups, 3);
    few.num_groups = std::min<std::int64_t>(moe.num_groups, 4);
    few.group_topk = std::min(moe.group_topk, few.num_groups);
    few.group_score_experts = std::min(moe.routing().group_experts, size);
    few.num_experts = few.num_groups * size;
    few.topk = std::min({moe.topk, few.group_topk * size, std::int64_t{3}});
  } else {
    few.num_experts = std::min<std::int64_t>(moe.num_experts, 5);
    few.topk = std::min({moe.topk, few.num_experts, std::int64_t{3}});
  }
  return few;
}

}  // namespace

ModelConfig scaled_down(const ModelConfig& model, const std::vector<ParallelConfig>& layouts) {
  std::int64_t tp = 1, heads = 1, stages = 1;
  for (const ParallelConfig& layout : layouts) {
    tp = std::lcm(tp, layout.tensor_model_parallel_size);
    heads = std::lcm(heads, head_parts(layout));
    stages = std::max(stages, stage_count(layout));
  }
  ModelConfig small = model;
  // A layout text names every layer.
  bool named = std::ranges::any_of(layouts, [](const ParallelConfig& layout) {
    return !layout.pipeline_model_parallel_layout.empty();
  });
  if (!named) small.num_layers = std::min(model.num_layers, std::max<std::int64_t>(stages, 4));
  std::int64_t per_group = model.num_attention_heads / model.kv_heads();
  small.num_query_groups = std::min(model.kv_heads(), std::max<std::int64_t>(heads, 2));
  std::int64_t least = heads / std::gcd(heads, small.num_query_groups);
  if (least == 1 && per_group > 1) least = std::min<std::int64_t>(per_group, 3);
  small.num_attention_heads = small.num_query_groups * least;
  constexpr std::int64_t kHead = 8;
  if (model.head_size() > kHead) {
    small.kv_channels = kHead;
    // RoPE rotates an even number of dims.
    auto pairs = static_cast<std::int64_t>(model.rotary_percent * kHead / 2);
    small.rotary_percent = 2.0 * static_cast<double>(std::max<std::int64_t>(pairs, 1)) / kHead;
  }
  if (model.multi_latent_attention) {
    small.q_lora_rank = std::min<std::int64_t>(model.q_lora_rank, 14);
    small.kv_lora_rank = std::min<std::int64_t>(model.kv_lora_rank, 10);
    small.qk_head_dim = std::min<std::int64_t>(model.qk_head_dim, kHead);
    small.qk_pos_emb_head_dim = std::min<std::int64_t>(model.qk_pos_emb_head_dim, 4);
    small.v_head_dim = std::min<std::int64_t>(model.v_head_dim, 6);
  }
  small.hidden_size = std::min<std::int64_t>(model.hidden_size, 36);
  small.ffn_hidden_size = std::min(ceil_div(model.ffn_size(), tp), std::int64_t{12}) * tp;
  small.vocab_size = std::min<std::int64_t>(model.vocab_size, 131);
  small.max_position_embeddings = std::min<std::int64_t>(model.max_position_embeddings, 64);
  if (small.window_size > 0) small.window_size = std::min<std::int64_t>(model.window_size, 5);
  small.window_layers = first_layers(model.window_layers, small.num_layers);
  small.hybrid_layer_pattern = first_kinds(model.hybrid_layer_pattern, small.num_layers);
  if (model.has_delta()) small.delta = few_heads(model.delta, tp);
  small.softmax_scale = 0;
  small.rope_scaling = {};
  small.init_method_std = 0.2;
  small.moe = few_experts(model.moe, model.expert_ffn_size(), tp);
  if (model.moe.layer_freq.size() > 1) {
    small.moe.layer_freq = first_layers(model.moe.layer_freq, small.num_layers);
  }
  return small;
}

}  // namespace bev
