#include "parallel/config.h"

#include <algorithm>

#include "base/fields.h"
#include "base/problems.h"
#include "base/text.h"

namespace bev {

namespace {
constexpr double kMaxAxis = 1 << 14;  // keeps the product of four axes within 64 bits

void recompute_fields(ParallelConfig& parallel, FieldList& list) {
  list.section("recompute");
  list.add("recompute-granularity", parallel.recompute_granularity,
           {{"none", RecomputeGranularity::kNone},
            {"selective", RecomputeGranularity::kSelective},
            {"full", RecomputeGranularity::kFull}},
           "keep all activations, recompute named parts of a layer, or whole layers");
  list.shorthand("recompute-activations", {{"recompute-granularity", "selective"}},
                 "--recompute-granularity selective");
  list.add("recompute-method", parallel.recompute_method,
           {{"uniform", RecomputeMethod::kUniform}, {"block", RecomputeMethod::kBlock}},
           "full: checkpoint every n layers, or recompute only a stage's first n");
  list.add("recompute-num-layers", parallel.recompute_num_layers, "full: the n of the method")
      .min(1)
      .limit(1 << 20);
  list.add("recompute-modules", parallel.recompute_modules, "selective: the parts to recompute")
      .one_of({"core_attn", "layernorm", "activation", "mlp"});
}
}  // namespace

void ParallelConfig::fields(FieldList& list) {
  list.section("parallel");
  list.add("tensor-model-parallel-size", tensor_model_parallel_size,
           "ranks that share each layer's matrices")
      .alias("tp")
      .min(1)
      .limit(kMaxAxis);
  list.add("pipeline-model-parallel-size", pipeline_model_parallel_size,
           "stages the layers are cut into")
      .alias("pp")
      .min(1)
      .limit(kMaxAxis);
  list.add("context-parallel-size", context_parallel_size, "ranks that share each sequence")
      .alias("cp")
      .min(1)
      .limit(kMaxAxis);
  list.add("expert-model-parallel-size", expert_model_parallel_size, "ranks that share the experts")
      .alias("ep")
      .min(1)
      .limit(kMaxAxis);
  list.add("data-parallel-size", data_parallel_size, "copies of the model")
      .alias("dp")
      .min(0)
      .limit(kMaxAxis)
      .defaults_to("ranks / (tp pp cp)");
  list.add("ranks", ranks, "ranks in all, as threads of this process")
      .alias("world-size")
      .min(0)
      .limit(kMaxRanks)
      .defaults_to("tp pp cp dp");
  list.add("sequence-parallel", sequence_parallel,
           "split norms and dropout over the tensor-parallel ranks as well; off when tp is 1");
  list.add("data-parallel-sharding-strategy", data_parallel_sharding_strategy,
           {{"no_shard", ShardingStrategy::kNoShard},
            {"optim", ShardingStrategy::kOptim},
            {"optim_grads", ShardingStrategy::kOptimGrads},
            {"optim_grads_params", ShardingStrategy::kOptimGradsParams}},
           "what data-parallel ranks share out: nothing, optimizer state (ZeRO-1), also gradients "
           "(ZeRO-2), also parameters (ZeRO-3)");
  list.shorthand("use-distributed-optimizer", {{"data-parallel-sharding-strategy", "optim"}},
                 "--data-parallel-sharding-strategy optim, unless that says more");
  list.add("distributed-timeout-minutes", distributed_timeout_minutes,
           "how long a collective may wait before the run fails and says who is missing")
      .above(0)
      .limit(1e6);
  recompute_fields(*this, list);
}

std::vector<std::string> ParallelConfig::resolve() {
  std::int64_t model = model_ranks();
  std::string product = concat("tp ", tensor_model_parallel_size, " x pp ",
                               pipeline_model_parallel_size, " x cp ", context_parallel_size);
  std::vector<std::string> problems;
  if (ranks == 0) {
    if (data_parallel_size == 0) data_parallel_size = 1;
    ranks = model * data_parallel_size;
  } else if (data_parallel_size == 0) {
    // At least 1 where the ranks do not suffice, so that the other rules have a number to check.
    data_parallel_size = std::max<std::int64_t>(ranks / model, 1);
    if (ranks % model != 0) {
      problems.push_back(
          concat("--ranks: ", ranks, " is not a multiple of ", product, " = ", model));
    }
  } else if (ranks != model * data_parallel_size) {
    problems.push_back(concat("--ranks: ", ranks, " is not ", product, " x dp ", data_parallel_size,
                              " = ", model * data_parallel_size,
                              "; leave --data-parallel-size out to have it derived"));
  }
  if (model * data_parallel_size > kMaxRanks) {
    problems.push_back(concat("--data-parallel-size: ", product, " x dp ", data_parallel_size,
                              " = ", model * data_parallel_size, " ranks are too many; at most ",
                              kMaxRanks));
  }
  if (tensor_model_parallel_size == 1) sequence_parallel = false;
  return problems;
}

}  // namespace bev
