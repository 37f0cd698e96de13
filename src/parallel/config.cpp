#include "parallel/config.h"

#include <algorithm>
#include <bit>

#include "base/fields.h"
#include "base/problems.h"
#include "base/text.h"
#include "parallel/pipeline/schedule.h"

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
  list.shorthand("moe-layer-recompute",
                 {{"recompute-granularity", "selective"}, {"recompute-modules", "moe"}},
                 "--recompute-granularity selective --recompute-modules moe");
  list.add("recompute-method", parallel.recompute_method,
           {{"uniform", RecomputeMethod::kUniform}, {"block", RecomputeMethod::kBlock}},
           "full: checkpoint every n layers, or recompute only a stage's first n");
  list.add("recompute-num-layers", parallel.recompute_num_layers, "full: the n of the method")
      .min(1)
      .limit(1 << 20);
  list.add(
          "recompute-modules", parallel.recompute_modules,
          "selective: the parts to recompute; activation and mlp those of experts too, moe_act and "
          "moe of experts alone; mla_up_proj: heads of latent attention, from its latents")
      .one_of({"core_attn", "layernorm", "activation", "mlp", "moe_act", "moe", "shared_experts",
               "mla_up_proj"});
}

void tensor_fields(ParallelConfig& parallel, FieldList& list) {
  list.section("tensor parallel");
  list.add("sequence-parallel", parallel.sequence_parallel,
           "split norms and dropout over the tensor-parallel ranks as well; off when tp is 1");
  list.add("tp-comm-overlap", parallel.tp_comm_overlap,
           "exchange activations block by block, overlapped with the GEMMs that need or make them");
}

// Returns "1, or 2 with zb-v".
std::string default_chunks_text() {
  std::string text = "1";
  for (const ScheduleTraits& traits : schedule_traits()) {
    if (traits.chunks > 1) text += concat(", or ", traits.chunks, " with ", traits.name);
  }
  return text;
}

void pipeline_fields(ParallelConfig& parallel, FieldList& list) {
  list.section("pipeline");
  std::vector<std::pair<std::string, PipelineSchedule>> schedules;
  for (const ScheduleTraits& traits : schedule_traits()) {
    schedules.emplace_back(traits.name, traits.schedule);
  }
  list.add("pipeline-schedule", parallel.pipeline_schedule, schedules,
           "order of forwards and backwards; 1f1b is interleaved when a rank has several stages");
  list.add("num-virtual-stages-per-pipeline-rank", parallel.num_virtual_stages_per_pipeline_rank,
           "stages on each pipeline rank")
      .alias("vpp")
      .min(0)
      .limit(kMaxAxis)
      .defaults_to(default_chunks_text());
  list.add("num-layers-per-virtual-pipeline-stage", parallel.num_layers_per_virtual_pipeline_stage,
           "the same given by the layers of a stage")
      .min(0)
      .limit(kMaxAxis)
      .defaults_to("layers / (pp vpp)");
  list.add("microbatch-group-size-per-virtual-pipeline-stage", parallel.microbatch_group_size,
           "micro-batches that a stage takes in a row in the interleaved schedule")
      .min(0)
      .limit(1 << 20)
      .defaults_to("pp");
  list.add("decoder-first-pipeline-num-layers", parallel.decoder_first_pipeline_num_layers,
           "layers of the first pipeline rank; the rest is split evenly over the others")
      .min(0)
      .limit(1 << 20)
      .defaults_to("even split");
  list.add("decoder-last-pipeline-num-layers", parallel.decoder_last_pipeline_num_layers,
           "layers of the last pipeline rank")
      .min(0)
      .limit(1 << 20)
      .defaults_to("even split");
  list.add("account-for-embedding-in-pipeline-split",
           parallel.account_for_embedding_in_pipeline_split,
           "count the embedding as a layer of the first stage");
  list.add("account-for-loss-in-pipeline-split", parallel.account_for_loss_in_pipeline_split,
           "count the output layer and loss as a layer of the last stage");
  list.add(
      "pipeline-model-parallel-layout", parallel.pipeline_model_parallel_layout,
      "every stage by letters: E embedding, t layer, m layer of multi-token prediction, L loss, | "
      "next stage, x*n and (..)*n repeat: \"Et*3|(tt|)*6mL\"");
  list.add("overlap-p2p-communication", parallel.overlap_p2p_communication,
           "receive for the next action while one computes");
}

void data_fields(ParallelConfig& parallel, FieldList& list) {
  list.section("data parallel");
  list.add("data-parallel-sharding-strategy", parallel.data_parallel_sharding_strategy,
           {{"no_shard", ShardingStrategy::kNoShard},
            {"optim", ShardingStrategy::kOptim},
            {"optim_grads", ShardingStrategy::kOptimGrads},
            {"optim_grads_params", ShardingStrategy::kOptimGradsParams}},
           "what data-parallel ranks share out: nothing, optimizer state (ZeRO-1), also gradients "
           "(ZeRO-2), also parameters (ZeRO-3)");
  list.shorthand("use-distributed-optimizer", {{"data-parallel-sharding-strategy", "optim"}},
                 "--data-parallel-sharding-strategy optim, unless that says more");
  list.shorthand("use-torch-fsdp2", {{"data-parallel-sharding-strategy", "optim_grads_params"}},
                 "--data-parallel-sharding-strategy optim_grads_params");
  list.add("num-distributed-optimizer-instances", parallel.num_distributed_optimizer_instances,
           "copies of what is shared out: shards within dp cp / n neighbours, replicas across")
      .min(1)
      .limit(kMaxAxis);
  list.add("ddp-bucket-size", parallel.ddp_bucket_size,
           "gradient elements that are exchanged at a time")
      .min(0)
      .limit(1e12)
      .defaults_to("40M, or 1M per rank where that is more");
  list.add("overlap-grad-reduce", parallel.overlap_grad_reduce,
           "exchange gradients of a bucket as soon as its last one is there");
  list.add("overlap-param-gather", parallel.overlap_param_gather,
           "gather parameters of later layers while earlier ones compute");
  list.add("grad-reduce-in-bf16", parallel.grad_reduce_in_bf16,
           "send gradients between data-parallel ranks as bf16; they are added in fp32")
      .alias("ddp-reduce-scatter-with-fp32-accumulation");
  list.add("megatron-fsdp-grad-comm-dtype", parallel.megatron_fsdp_grad_comm_dtype,
           "bf16: --grad-reduce-in-bf16")
      .one_of({"auto", "fp32", "bf16"});
}

void context_fields(ParallelConfig& parallel, FieldList& list) {
  list.section("context parallel");
  list.add(
          "cp-comm-type", parallel.cp_comm_type,
          "how attention sees the whole sequence: a ring of keys and values, an exchange of heads, "
          "a gather of keys and values, or heads within and a ring across; one, or one per layer")
      .one_of({"p2p", "a2a", "allgather", "a2a+p2p"});
  list.add("hierarchical-context-parallel-sizes", parallel.hierarchical_context_parallel_sizes,
           "a2a+p2p: ranks that exchange heads, ranks of a ring; their product is cp");
  list.add(
      "hybrid-context-parallel", parallel.hybrid_context_parallel,
      "dynamic context parallelism: every document of a global batch is shared by 1, 2, 4, .. of "
      "the dp x cp ranks, by its length and so that all have equal attention FLOPs");
  list.add("max-seqlen-per-dp-cp-rank", parallel.max_seqlen_per_dp_cp_rank,
           "--hybrid-context-parallel: most tokens of a micro-batch on a rank")
      .alias("max-seqlen-per-cp-rank")
      .min(0)
      .limit(1 << 28)
      .defaults_to("given");
}

void expert_fields(ParallelConfig& parallel, FieldList& list) {
  list.section("expert parallel");
  list.add(
      "moe-token-dispatcher-type", parallel.moe_token_dispatcher,
      {{"allgather", TokenDispatcher::kAllGather},
       {"alltoall", TokenDispatcher::kAllToAll},
       {"flex", TokenDispatcher::kAllToAll}},
      "tokens go to all ranks that share the experts, or to those that have theirs (flex too)");
  list.add("moe-shared-expert-overlap", parallel.moe_shared_expert_overlap,
           "run the shared expert while tokens are on their way to the others");
  list.add(
          "moe-expert-rank-capacity-factor", parallel.moe_expert_rank_capacity_factor,
          "exchange blocks of fixed size, this factor times what even use of the experts needs, so "
          "that no step waits for counts; a step that needs more is done again with exact sizes")
      .min(0)
      .limit(1e6)
      .defaults_to("exact sizes");
  list.add(
      "overlap-moe-expert-parallel-comm", parallel.overlap_moe_expert_parallel_comm,
      "interleave the forward of a micro-batch with the backward of another, so that one "
      "computes while the other exchanges tokens; holds more micro-batches at a time; off when "
      "ep is 1");
  list.add("delay-wgrad-compute", parallel.delay_wgrad_compute,
           "with it: compute weight gradients while the backward exchanges tokens");
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
  list.add("expert-tensor-parallel-size", expert_tensor_parallel_size,
           "ranks that share each expert's matrices")
      .alias("etp")
      .min(0)
      .limit(kMaxAxis)
      .defaults_to("tp");
  list.add("data-parallel-size", data_parallel_size, "copies of the model")
      .alias("dp")
      .min(0)
      .limit(kMaxAxis)
      .defaults_to("ranks / (tp pp cp)");
  list.add("ranks", ranks, "ranks of each process, as its threads; a single process has all")
      .min(0)
      .limit(kMaxRanks)
      .defaults_to("tp pp cp dp / processes");
  list.add("use-tp-pp-dp-mapping", use_tp_pp_dp_mapping,
           "count ranks tp, cp, pp, dp instead of tp, cp, dp, pp");
  list.add("distributed-timeout-minutes", distributed_timeout_minutes,
           "how long a collective may wait before the run fails and says who is missing")
      .above(0)
      .limit(1e6);
  list.add(
      "inject-fault", inject_fault,
      "test of the watchdog: rank=R,call=N,kind=throw|stall|kill at the N-th collective call of "
      "rank R");
  tensor_fields(*this, list);
  pipeline_fields(*this, list);
  data_fields(*this, list);
  context_fields(*this, list);
  expert_fields(*this, list);
  recompute_fields(*this, list);
  offload.fields(list);
}

namespace {
std::string product_text(const ParallelConfig& parallel) {
  return concat("tp ", parallel.tensor_model_parallel_size, " x pp ",
                parallel.pipeline_model_parallel_size, " x cp ", parallel.context_parallel_size);
}

// Derives the ranks of each process if they are not given; the data-parallel size may be missing
// too.
void derive_ranks(ParallelConfig& parallel, std::vector<std::string>& problems) {
  std::int64_t model = parallel.model_ranks(), processes = parallel.processes;
  std::int64_t& dp = parallel.data_parallel_size;
  bool given = dp > 0;
  if (!given) dp = processes % model == 0 ? processes / model : 1;
  parallel.ranks = std::max<std::int64_t>(model * dp / processes, 1);
  if (model * dp % processes == 0) return;
  if (given) {
    problems.push_back(concat("--data-parallel-size: ", product_text(parallel), " x dp ", dp, " = ",
                              model * dp, " ranks cannot be shared out evenly over ", processes,
                              " processes; leave it out to have it derived"));
  } else {
    problems.push_back(
        concat("--ranks: ", processes, " processes do not fit ", product_text(parallel), " = ",
               model, "; start a multiple or a divisor of ", model, " processes, or give --ranks"));
  }
}

void check_hybrid(const ParallelConfig& parallel, std::vector<std::string>& problems) {
  if (!parallel.hybrid_context_parallel) {
    if (parallel.max_seqlen_per_dp_cp_rank == 0) return;
    problems.push_back(
        "--max-seqlen-per-dp-cp-rank: does nothing without --hybrid-context-parallel; add it");
    return;
  }
  const std::int64_t ranks = parallel.context_parallel_size * parallel.data_parallel_size;
  auto refuse = [&](bool given, const char* text) {
    if (given) problems.push_back(concat("--hybrid-context-parallel: ", text));
  };
  if (parallel.max_seqlen_per_dp_cp_rank < 2) {
    problems.push_back(
        "--max-seqlen-per-dp-cp-rank: is missing; give the most tokens that a rank holds at once");
  }
  if (!std::has_single_bit(static_cast<std::uint64_t>(ranks))) {
    problems.push_back(concat("--hybrid-context-parallel: dp x cp = ", ranks,
                              " ranks are no power of two; use ",
                              std::bit_floor(static_cast<std::uint64_t>(ranks)), " or ",
                              std::bit_ceil(static_cast<std::uint64_t>(ranks))));
  }
  refuse(parallel.pipeline_model_parallel_size > 1,
         "pipeline stages would wait for micro-batches of unequal length; leave out "
         "--pipeline-model-parallel-size");
  const bool heads = std::ranges::any_of(parallel.cp_comm_type, [](const std::string& type) {
    return type != "p2p" && type != "allgather";
  });
  refuse(heads || !parallel.hierarchical_context_parallel_sizes.empty(),
         "the ranks of a sequence change, so heads are not exchanged; take --cp-comm-type p2p or "
         "allgather");
}
}  // namespace

std::vector<std::string> ParallelConfig::resolve() {
  grad_reduce_in_bf16 |= megatron_fsdp_grad_comm_dtype == "bf16";
  std::int64_t model = model_ranks();
  std::string product = product_text(*this);
  std::vector<std::string> problems;
  std::string all = concat(ranks, processes > 1 ? concat(" x ", processes, " processes") : "");
  if (ranks == 0) {
    derive_ranks(*this, problems);
  } else if (data_parallel_size == 0) {
    // At least 1 even if there are too few ranks, so that the other rules have a value to check.
    data_parallel_size = std::max<std::int64_t>(ranks * processes / model, 1);
    if (ranks * processes % model != 0) {
      problems.push_back(concat("--ranks: ", all, " is not a multiple of ", product, " = ", model));
    }
  } else if (ranks * processes != model * data_parallel_size) {
    problems.push_back(concat("--ranks: ", all, " is not ", product, " x dp ", data_parallel_size,
                              " = ", model * data_parallel_size,
                              "; leave --data-parallel-size out to have it derived"));
  }
  if (model * data_parallel_size > kMaxRanks) {
    problems.push_back(concat("--data-parallel-size: ", product, " x dp ", data_parallel_size,
                              " = ", model * data_parallel_size, " ranks are too many; at most ",
                              kMaxRanks));
  }
  if (tensor_model_parallel_size == 1) sequence_parallel = false;
  check_hybrid(*this, problems);
  return problems;
}

}  // namespace bev
