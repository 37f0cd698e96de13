// Settings of the parallel layout (TP, PP, CP, EP, DP, ZeRO) and of activation recomputation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/moe/token_dispatcher.h"
#include "parallel/offload_config.h"

namespace bev {

class FieldList;

// ZeRO stages 0, 1, 2 and 3: which state data-parallel ranks shard.
enum class ShardingStrategy : std::uint8_t { kNoShard, kOptim, kOptimGrads, kOptimGradsParams };
// The rows of schedules.def; their traits are in parallel/pipeline/schedule.h.
enum class PipelineSchedule : std::uint8_t {
#define BEV_SCHEDULE(value, ...) value,
#include "parallel/pipeline/schedules.def"
};
enum class RecomputeGranularity : std::uint8_t { kNone, kSelective, kFull };
enum class RecomputeMethod : std::uint8_t { kUniform, kBlock };

struct ParallelConfig {
  // Limit of a memory plan. A real run has fewer ranks, which are threads of its processes.
  static constexpr std::int64_t kMaxRanks = 1 << 20;

  std::int64_t processes = 1;  // set by the launcher, not a flag
  std::int64_t ranks = 0;      // of each process; 0: as many as the parallel sizes need
  std::int64_t tensor_model_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t context_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;
  std::int64_t expert_tensor_parallel_size = 0;  // 0: the tensor-parallel size
  std::int64_t data_parallel_size = 0;           // 0: the ranks divided by the other sizes
  bool use_tp_pp_dp_mapping = false;             // ranks are ordered tp, cp, pp, dp
  double distributed_timeout_minutes = 10.0;
  std::string inject_fault;  // "rank=1,call=20,kind=throw": tests of the watchdog

  // Tensor parallel.
  bool sequence_parallel = false;
  bool tp_comm_overlap = false;

  // Pipeline.
  PipelineSchedule pipeline_schedule = PipelineSchedule::k1F1B;
  std::int64_t num_virtual_stages_per_pipeline_rank = 0;  // 0: 1, or 2 for ZB-V
  std::int64_t num_layers_per_virtual_pipeline_stage = 0;
  std::int64_t microbatch_group_size = 0;  // interleaved schedule; 0: the pipeline size
  std::int64_t decoder_first_pipeline_num_layers = 0, decoder_last_pipeline_num_layers = 0;
  bool account_for_embedding_in_pipeline_split = false;
  bool account_for_loss_in_pipeline_split = false;
  std::string pipeline_model_parallel_layout;
  bool overlap_p2p_communication = true;

  // Data parallel.
  ShardingStrategy data_parallel_sharding_strategy = ShardingStrategy::kNoShard;
  std::int64_t num_distributed_optimizer_instances = 1;
  std::int64_t ddp_bucket_size = 0;  // elements; 0: max(40M, 1M per data-parallel rank)
  bool overlap_grad_reduce = false;
  bool overlap_param_gather = false;
  bool grad_reduce_in_bf16 = false;  // dtype on the wire; sums are in the gradients' dtype
  std::string megatron_fsdp_grad_comm_dtype = "auto";  // bf16: the same

  // Context parallel: p2p, a2a, allgather or a2a+p2p; one value for all layers, or one per layer.
  std::vector<std::string> cp_comm_type = {"p2p"};
  std::vector<std::int64_t> hierarchical_context_parallel_sizes;  // a2a size, p2p size
  // Dynamic context parallelism: each sequence is shared by as many of the dp x cp ranks as its
  // length and the balance of the ranks want.
  bool hybrid_context_parallel = false;
  std::int64_t max_seqlen_per_dp_cp_rank = 0;  // tokens of a rank's micro-batch; 0: not given

  // Expert parallel.
  TokenDispatcher moe_token_dispatcher = TokenDispatcher::kAllToAll;
  bool moe_shared_expert_overlap = false;
  double moe_expert_rank_capacity_factor = 0;     // fixed all-to-all size; 0: exact sizes
  bool overlap_moe_expert_parallel_comm = false;  // with compute of another micro-batch
  bool delay_wgrad_compute = false;  // delays wgrad until a backward waits for an all-to-all

  RecomputeGranularity recompute_granularity = RecomputeGranularity::kNone;
  RecomputeMethod recompute_method = RecomputeMethod::kUniform;
  std::int64_t recompute_num_layers = 1;
  std::vector<std::string> recompute_modules = {"core_attn"};

  OffloadConfig offload;

  void fields(FieldList& list);

  // Data-parallel ranks between which a global batch is divided by the order of its samples.
  std::int64_t batch_ranks() const { return hybrid_context_parallel ? 1 : data_parallel_size; }
  // Ranks that hold one copy of the model.
  std::int64_t model_ranks() const {
    return tensor_model_parallel_size * pipeline_model_parallel_size * context_parallel_size;
  }
  // Fills in ranks and data_parallel_size, and disables sequence_parallel if tp is 1. Returns the
  // problems of settings that contradict each other.
  std::vector<std::string> resolve();
};

}  // namespace bev
