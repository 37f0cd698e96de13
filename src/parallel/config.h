// How a run is laid out over ranks, and what is recomputed to save memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bev {

class FieldList;

// What data-parallel ranks share out instead of keeping whole (ZeRO stage 0, 1, 2, 3).
enum class ShardingStrategy : std::uint8_t { kNoShard, kOptim, kOptimGrads, kOptimGradsParams };
enum class RecomputeGranularity : std::uint8_t { kNone, kSelective, kFull };
enum class RecomputeMethod : std::uint8_t { kUniform, kBlock };

struct ParallelConfig {
  // Ranks of a plan; those of a run are fewer, being threads of one process.
  static constexpr std::int64_t kMaxRanks = 1 << 20;

  std::int64_t ranks = 0;  // 0: the product of the sizes
  std::int64_t tensor_model_parallel_size = 1;
  std::int64_t pipeline_model_parallel_size = 1;
  std::int64_t context_parallel_size = 1;
  std::int64_t expert_model_parallel_size = 1;
  std::int64_t data_parallel_size = 0;  // 0: what the ranks leave over
  bool sequence_parallel = false;
  ShardingStrategy data_parallel_sharding_strategy = ShardingStrategy::kNoShard;
  double distributed_timeout_minutes = 10.0;

  RecomputeGranularity recompute_granularity = RecomputeGranularity::kNone;
  RecomputeMethod recompute_method = RecomputeMethod::kUniform;
  std::int64_t recompute_num_layers = 1;
  std::vector<std::string> recompute_modules = {"core_attn"};  // also layernorm, activation, mlp

  void fields(FieldList& list);

  // Ranks that hold one copy of the model.
  std::int64_t model_ranks() const {
    return tensor_model_parallel_size * pipeline_model_parallel_size * context_parallel_size;
  }
  // Fills in ranks and data_parallel_size, and switches sequence_parallel off where tp is 1.
  // Returns what does not fit together.
  std::vector<std::string> resolve();
};

}  // namespace bev
