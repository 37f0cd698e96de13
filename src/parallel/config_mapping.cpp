#include "parallel/config_mapping.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "parallel/pipeline/pipeline_layout.h"

namespace bev {

MeshShape mesh_shape(const ParallelConfig& config) {
  MeshShape shape;
  shape.tp = config.tensor_model_parallel_size;
  shape.cp = config.context_parallel_size;
  shape.dp = std::max<std::int64_t>(config.data_parallel_size, 1);
  shape.pp = config.pipeline_model_parallel_size;
  if (config.hybrid_context_parallel) {
    shape.dp *= std::exchange(shape.cp, 1);
    shape.shared_tokens = config.max_seqlen_per_dp_cp_rank;
  }
  shape.ep = config.expert_model_parallel_size;
  shape.etp =
      config.expert_tensor_parallel_size > 0 ? config.expert_tensor_parallel_size : shape.tp;
  shape.dp_outermost = config.use_tp_pp_dp_mapping;
  shape.dp_instances = config.num_distributed_optimizer_instances;
  if (!config.hierarchical_context_parallel_sizes.empty()) {
    shape.cp_inner = config.hierarchical_context_parallel_sizes.front();
  }
  return shape;
}

MeshShape mesh_shape(const ParallelConfig& config, const ModelConfig& model) {
  MeshShape shape = mesh_shape(config);
  if (shape.tp > model.kv_heads()) shape.kv_share = shape.tp / model.kv_heads();
  shape.embedding_stages = pipeline_layout(model.num_layers, config).embedding_ranks(model);
  return shape;
}

namespace {
std::vector<ContextExchange> context_exchange(const ParallelConfig& config) {
  std::vector<ContextExchange> out;
  std::int64_t cp = config.context_parallel_size, inner = mesh_shape(config).cp_inner;
  for (const std::string& type : config.cp_comm_type) {
    bool both = type == "a2a+p2p";
    if (type == "allgather") {
      out.push_back(ContextExchange::kGather);
    } else if (type == "a2a" || (both && inner == cp)) {
      out.push_back(ContextExchange::kHeads);
    } else if (both && inner > 1) {
      out.push_back(ContextExchange::kHeadsAndRing);
    } else {
      out.push_back(ContextExchange::kRing);
    }
  }
  return out;
}
}  // namespace

BuildOptions build_options(const ParallelConfig& config) {
  BuildOptions build;
  build.tensor_parallel.sequence_parallel =
      config.sequence_parallel && config.tensor_model_parallel_size > 1;
  build.tensor_parallel.overlap = config.tp_comm_overlap;
  build.context = context_exchange(config);
  build.experts = {.dispatcher = config.moe_token_dispatcher,
                   .overlap_shared = config.moe_shared_expert_overlap,
                   .yields_to_partner = config.overlap_moe_expert_parallel_comm,
                   .rank_capacity = config.moe_expert_rank_capacity_factor};
  RecomputePolicy& policy = build.recompute;
  if (config.recompute_granularity == RecomputeGranularity::kFull) {
    bool block = config.recompute_method == RecomputeMethod::kBlock;
    policy.layers_per_unit = block ? 1 : std::max<std::int64_t>(config.recompute_num_layers, 1);
    policy.full_layers = block ? config.recompute_num_layers : -1;
  }
  if (config.recompute_granularity == RecomputeGranularity::kSelective) {
    for (const std::string& part : config.recompute_modules) {
      policy.core_attention |= part == "core_attn";
      policy.norms |= part == "layernorm";
      policy.activations |= part == "activation";
      policy.mlp |= part == "mlp";
      policy.expert_activations |= part == "moe_act" || part == "activation";
      policy.experts |= part == "moe" || part == "mlp";
      policy.shared_experts |= part == "shared_experts";
      policy.latent_up |= part == "mla_up_proj";
    }
  }
  return build;
}

}  // namespace bev
