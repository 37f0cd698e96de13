#include "app/run_config.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "app/data_checks.h"
#include "app/megatron_flags.h"
#include "app/options.h"
#include "base/divide.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/problems.h"
#include "base/text.h"
#include "checkpoint/step_folders.h"
#include "models/families/family.h"
#include "models/lora.h"
#include "models/rope.h"
#include "parallel/engine.h"
#include "parallel/pipeline/layout_text.h"
#include "parallel/pipeline/pipeline_layout.h"
#include "parallel/pipeline/schedule.h"
#include "posttrain/upcycling.h"

namespace bev {

namespace {

using Problems = std::vector<std::string>;

void append(Problems& out, const Problems& more) {
  out.insert(out.end(), more.begin(), more.end());
}

// seq-length, max-position-embeddings and vocab-size are derived from each other and from the data.
void derive_shape(RunConfig& run) {
  std::int64_t& longest = run.model.max_position_embeddings;
  if (run.data.seq_length == 0) {
    run.data.seq_length = longest > 0 ? std::min<std::int64_t>(longest, 4096) : 1024;
  }
  if (longest == 0) longest = run.data.seq_length;
  if (run.model.vocab_size == 0) run.model.vocab_size = vocabulary(run.data);
}

// A replay is as long as its file unless the user sets a shorter length.
void check_length(const RunConfig& run, Problems& out) {
  std::int64_t iters = run.train.train_iters, samples = run.train.train_samples;
  if (iters > 0 && samples > 0) {
    out.push_back(concat("--train-iters: ", iters, " and --train-samples ", samples,
                         " both set the length; keep one"));
  }
  bool open = run.train.dry_run || run.train.eval.skip_train || !run.data.replay_flag().empty();
  if (iters == 0 && samples == 0 && !open) {
    out.push_back("--train-iters: the run has no length; give it, --epochs or --train-samples");
  }
}

// A replay determines the batches and their order and has no validation data: other flags for these
// are refused.
void check_replay(const RunConfig& run, Problems& out) {
  std::string flag = run.data.replay_flag();
  if (flag.empty()) return;
  auto refuse = [&](bool given, const char* other, std::string_view why) {
    if (given) out.push_back(concat(other, ": a replay ", why, "; leave it out"));
  };
  std::string sizes = concat("has the batch sizes of its file (", flag, ")");
  refuse(run.batch.global_batch_size > 0, "--global-batch-size", sizes);
  refuse(!run.batch.rampup_batch_size.empty(), "--rampup-batch-size", sizes);
  refuse(!run.batch.step_batch_size_schedule.empty(), "--step-batch-size-schedule", sizes);
  refuse(run.batch.decrease_batch_size_if_needed, "--decrease-batch-size-if-needed", sizes);
  const char* data = "has no validation data";
  refuse(run.train.eval_interval > 0, "--eval-interval", data);
  refuse(run.train.eval_iters > 0, "--eval-iters", data);
  refuse(run.train.eval.full_validation, "--full-validation", data);
  refuse(run.train.eval.skip_train, "--skip-train", data);
  const char* order = "takes the batches of its file in order";
  refuse(run.loader.consumed_train_samples > 0, "--consumed-train-samples", order);
  refuse(run.loader.dataloader_type != OrderKind::kSingle, "--dataloader-type", order);
}

// The run must have iterations left after the loaded position.
void check_position(const RunConfig& run, const BatchSchedule& batches, Problems& out) {
  std::int64_t consumed = run.loader.consumed_train_samples;
  std::int64_t iterations = run.train.train_iters > 0
                                ? run.train.train_iters
                                : batches.iterations_within(run.train.train_samples);
  if (consumed == 0 || batches.iterations_within(consumed) < iterations) return;
  out.push_back(concat("--consumed-train-samples: ", consumed, " leaves nothing of a run of ",
                       batches.samples_after(iterations),
                       " samples; give less, or a longer run by --train-iters or --train-samples"));
}

// Checks the batch sizes, and the learning rate and weight decay schedules, which count samples.
void check_schedules(const RunConfig& run, Problems& out) {
  // The batches of a replay are in its file; without it there is nothing to count.
  if (!run.data.replay_flag().empty() && run.batch.replay.empty()) return;
  BatchSpec spec = run.batch.spec(run.parallel.batch_ranks(), run.data.seq_length);
  Problems batch = batch_problems(
      spec, std::max(run.loader.consumed_train_samples, run.checkpoint.loaded_samples));
  append(out, batch);
  bool open = run.train.train_iters == 0 && run.train.train_samples == 0;
  if (open || !batch.empty()) return;
  BatchSchedule batches(spec);
  check_position(run, batches, out);
  append(out, lr_schedule(run.optim, batches).problems());
  append(out, weight_decay_schedule(run.optim, run.train, batches).problems());
}

void check_sequence(const RunConfig& run, Problems& out) {
  std::int64_t length = run.data.seq_length;
  if (run.model.position_embedding_type == PositionKind::kLearned &&
      length > run.model.max_position_embeddings) {
    out.push_back(concat("--seq-length: ", length, " is above --max-position-embeddings ",
                         run.model.max_position_embeddings,
                         ", and learned positions end there; shorten it or raise the other"));
  }
  if (run.model.indexer.topk > 0 && length > run.model.indexer.topk) {
    out.push_back(concat("--seq-length: ", length, " is above --dsa-indexer-topk ",
                         run.model.indexer.topk,
                         ", beyond which attention is sparse; that is not supported, so shorten "
                         "it"));
  }
}

// The inner sizes of the model's MLPs; each must divide by the tensor-parallel size.
struct Width {
  const char* flag;
  std::int64_t size;
};
std::vector<Width> mlp_widths(const ModelConfig& model) {
  std::vector<Width> widths;
  if (model.has_dense_layers()) widths.push_back({"--ffn-hidden-size", model.ffn_size()});
  if (model.moe.any() && model.moe.shared_expert_size > 0) {
    widths.push_back({"--moe-shared-expert-intermediate-size", model.moe.shared_expert_size});
  }
  return widths;
}

// What must divide by the tensor-parallel size: those, and the heads of the mixers.
std::vector<Width> tensor_widths(const ModelConfig& model) {
  std::vector<Width> widths = mlp_widths(model);
  if (model.has_mamba()) {
    widths.insert(widths.begin(), {"--mamba-num-heads", model.mamba.heads(model.hidden_size)});
  }
  if (model.has_delta()) {
    widths.insert(widths.begin(), {"--linear-num-key-heads", model.delta.num_key_heads});
  }
  if (model.has_attention()) {
    widths.insert(widths.begin(), {"--num-attention-heads", model.num_attention_heads});
  }
  return widths;
}

// Each tensor-parallel rank has whole heads, an equal part of the MLP, and whole KV heads or an
// equal part of one.
bool tensor_parallel_fits(const ModelConfig& model, std::int64_t tp) {
  std::int64_t groups = model.kv_heads();
  bool shared = tp % groups == 0 && model.head_size() % (tp / groups) == 0;
  bool keys_fit = !model.has_attention() || groups % tp == 0 || shared;
  return keys_fit && std::ranges::all_of(tensor_widths(model),
                                         [&](const Width& w) { return w.size % tp == 0; });
}

void check_tensor_parallel(const RunConfig& run, Problems& out) {
  const ModelConfig& model = run.model;
  std::int64_t tp = run.parallel.tensor_model_parallel_size;
  if (tp == 1 || model.num_attention_heads < 1 || model.hidden_size < 1) return;
  if (tensor_parallel_fits(model, tp)) return;
  std::vector<std::int64_t> sizes;
  std::int64_t most = model.num_attention_heads;
  if (model.has_mamba()) most = std::max(most, model.mamba.heads(model.hidden_size));
  if (model.has_delta()) most = std::max(most, model.delta.num_key_heads);
  for (std::int64_t size = 1; size <= most; ++size) {
    if (tensor_parallel_fits(model, size)) sizes.push_back(size);
  }
  std::string cure = sizes_text(sizes);
  auto refuse = [&](const char* flag, std::int64_t size) {
    out.push_back(concat("--tensor-model-parallel-size: ", tp, " does not divide ", flag, " ", size,
                         "; use ", cure));
  };
  std::int64_t groups = model.kv_heads();
  std::vector<Width> uneven = tensor_widths(model);
  std::erase_if(uneven, [&](const Width& width) { return width.size % tp == 0; });
  for (const Width& width : uneven) refuse(width.flag, width.size);
  if (!uneven.empty()) return;
  if (tp % groups != 0) {
    refuse("--num-query-groups", groups);
  } else {
    out.push_back(concat("--tensor-model-parallel-size: ", tp, " ranks with --num-query-groups ",
                         groups, " cut a head of --kv-channels ", model.head_size(), " into ",
                         tp / groups, " unequal parts; use ", cure));
  }
}

// The micro-batch counts of the iterations; empty if the batch sizes are not known.
std::vector<std::int64_t> micro_batch_counts(const RunConfig& run) {
  if (!run.data.replay_flag().empty() && run.batch.replay.empty()) return {};
  BatchSpec spec = run.batch.spec(run.parallel.batch_ranks(), run.data.seq_length);
  if (!batch_problems(spec).empty()) return {};
  BatchSchedule batches(spec);
  std::vector<std::int64_t> counts;
  for (const BatchSchedule::Step& step : batches.steps()) {
    counts.push_back(batches.at(step.from_samples).micro_batches);
  }
  return counts;
}

void check_pipeline(const RunConfig& run, std::span<const std::int64_t> micro_batches,
                    Problems& out) {
  if (run.model.num_layers < 1) return;
  append(out, pipeline_problems(run.model.num_layers, run.parallel, micro_batches));
  append(out, mtp_problems(run.parallel.pipeline_model_parallel_layout, run.model.mtp_num_layers));
}

// Ranks are threads of their process; a dry run starts none.
void check_ranks(const RunConfig& run, Problems& out) {
  constexpr std::int64_t kMostThreads = 4096;
  std::int64_t ranks = run.parallel.model_ranks() * run.parallel.data_parallel_size;
  if (run.train.dry_run || ranks / run.parallel.processes <= kMostThreads) return;
  out.push_back(concat(
      "--ranks: tp ", run.parallel.tensor_model_parallel_size, " x pp ",
      run.parallel.pipeline_model_parallel_size, " x cp ", run.parallel.context_parallel_size,
      " x dp ", run.parallel.data_parallel_size, " = ", ranks,
      " ranks are too many for the threads of one process; use at most ", kMostThreads));
}

// Ulysses: the heads must divide by the ranks of the all-to-all.
void check_head_exchange(const RunConfig& run, const char* type, std::int64_t ranks,
                         Problems& out) {
  std::int64_t tp = run.parallel.tensor_model_parallel_size;
  if (!run.model.has_attention()) return;
  if (run.model.num_attention_heads < 1 || run.model.num_attention_heads % tp != 0) return;
  std::int64_t heads = run.model.num_attention_heads / tp;
  std::int64_t groups = std::max<std::int64_t>(run.model.kv_heads() / tp, 1);
  std::int64_t most = std::gcd(heads, groups);
  if (most % ranks == 0) return;
  out.push_back(concat("--cp-comm-type: ", type, " over ", ranks,
                       " ranks needs heads that divide; a ", "tensor-parallel rank has ", heads,
                       " and ", groups, " for keys and values; ", "use ", divisors_text(most),
                       " ranks, or p2p or allgather"));
}

// Heads that need all tokens of a sequence on one rank.
void check_heads_of_sequences(const RunConfig& run, Problems& out) {
  const EncoderConfig& encoder = run.model.encoder;
  const bool mean =
      encoder.labels == LabelKind::kSequence && encoder.label_pooling == LabelPooling::kMean;
  if (run.parallel.context_parallel_size == 1) return;
  if (mean || encoder.labels == LabelKind::kSpans) {
    out.push_back(concat("--context-parallel-size: ", run.parallel.context_parallel_size, "; ",
                         mean ? "the head for labels reads the mean over a sequence"
                              : "spans are chosen among all tokens of a sequence",
                         ", which no rank then has; give 1, or use other kinds of parallelism"));
  }
}

void check_context_parallel(const RunConfig& run, Problems& out) {
  check_heads_of_sequences(run, out);
  const ParallelConfig& parallel = run.parallel;
  std::int64_t cp = parallel.context_parallel_size, layers = run.model.num_layers;
  const std::vector<std::string>& types = parallel.cp_comm_type;
  auto count = static_cast<std::int64_t>(types.size());
  if (count != 1 && layers > 0 && count != layers) {
    out.push_back(concat("--cp-comm-type: ", count, " kinds for --num-layers ", layers,
                         "; give one, or one for each layer"));
  }
  const std::vector<std::int64_t>& sizes = parallel.hierarchical_context_parallel_sizes;
  if (cp == 1 && sizes.empty()) return;
  auto uses = [&](const char* type) { return std::ranges::find(types, type) != types.end(); };
  if (uses("a2a")) check_head_exchange(run, "a2a", cp, out);
  bool fit = sizes.size() == 2 && sizes[0] > 0 && sizes[1] > 0 && sizes[0] * sizes[1] == cp;
  if ((uses("a2a+p2p") || !sizes.empty()) && !fit) {
    out.push_back(concat("--hierarchical-context-parallel-sizes: ",
                         sizes.empty() ? std::string("missing") : "these sizes do not fit",
                         "; a2a+p2p wants two whose product is --context-parallel-size ", cp,
                         ": the ranks that exchange heads, and those of a ring"));
  } else if (uses("a2a+p2p")) {
    check_head_exchange(run, "a2a+p2p", sizes[0], out);
  }
}

void check_data_parallel(const RunConfig& run, Problems& out) {
  const ParallelConfig& parallel = run.parallel;
  std::int64_t instances = parallel.num_distributed_optimizer_instances;
  std::int64_t copies = parallel.data_parallel_size * parallel.context_parallel_size;
  if (instances == 1) return;
  if (copies % instances != 0) {
    out.push_back(concat("--num-distributed-optimizer-instances: ", instances,
                         " does not divide dp x cp = ", copies, "; use ", divisors_text(copies)));
  }
  if (parallel.data_parallel_sharding_strategy == ShardingStrategy::kNoShard) {
    out.push_back(concat("--num-distributed-optimizer-instances: ", instances,
                         " copies of shards, but nothing is shared out; give "
                         "--data-parallel-sharding-strategy optim, optim_grads or "
                         "optim_grads_params"));
  }
}

void check_expert_parts(const RunConfig& run, const MeshShape& mesh, Problems& out) {
  const ModelConfig& model = run.model;
  if (mesh.ep > model.moe.num_experts) {
    out.push_back(concat("--expert-model-parallel-size: ", mesh.ep, " ranks share --num-experts ",
                         model.moe.num_experts, "; at most ", model.moe.num_experts));
  }
  std::int64_t width = model.expert_ffn_size();
  if (model.hidden_size > 0 && width % mesh.etp != 0) {
    out.push_back(concat("--expert-tensor-parallel-size: ", mesh.etp,
                         " does not divide --moe-ffn-hidden-size ", width, "; use ",
                         divisors_text(width)));
  }
  if (run.parallel.moe_shared_expert_overlap && model.moe.shared_expert_size == 0) {
    out.push_back(
        "--moe-shared-expert-overlap: the model has no shared expert; give "
        "--moe-shared-expert-intermediate-size or leave it out");
  }
}

void check_expert_exchange(const RunConfig& run, Problems& out) {
  const ParallelConfig& parallel = run.parallel;
  if (parallel.delay_wgrad_compute && !parallel.overlap_moe_expert_parallel_comm) {
    out.push_back(
        "--delay-wgrad-compute: goes with --overlap-moe-expert-parallel-comm; give that too, or "
        "--pipeline-schedule zb-h1 to put weight gradients into the pipeline's gaps");
  }
  if (!parallel.overlap_moe_expert_parallel_comm) return;
  if (!run.model.moe.any()) {
    out.push_back("--overlap-moe-expert-parallel-comm: the model has no experts; leave it out");
  }
  if (!traits_of(parallel.pipeline_schedule).pairs) {
    out.push_back(concat("--overlap-moe-expert-parallel-comm: needs --pipeline-schedule ",
                         names_of_schedules(&ScheduleTraits::pairs)));
  }
}

void check_experts(const RunConfig& run, Problems& out) {
  std::int64_t ep = run.parallel.expert_model_parallel_size;
  MeshShape mesh = mesh_shape(run.parallel);
  std::int64_t stage = mesh.tp * mesh.cp * mesh.dp;
  check_expert_exchange(run, out);
  if (stage % (mesh.etp * mesh.ep) != 0) {
    const char* flag =
        mesh.ep > 1 ? "--expert-model-parallel-size" : "--expert-tensor-parallel-size";
    out.push_back(concat(flag, ": ep ", mesh.ep, " x etp ", mesh.etp, " does not divide the ",
                         stage, " ranks of a pipeline stage (tp x cp x dp); their product may be ",
                         divisors_text(stage), ", or give more ranks by --data-parallel-size"));
  }
  if (run.model.moe.any()) return check_expert_parts(run, mesh, out);
  // A dry run may show the groups; a run would have no experts to distribute.
  if (ep > 1 && !run.train.dry_run) {
    out.push_back(concat("--expert-model-parallel-size: ", ep,
                         " needs a model with experts; this one has none, so leave it out"));
  }
}

// Whatever couples the ranks that share a sequence by more than attention.
void check_hybrid_context(const RunConfig& run, Problems& out) {
  if (!run.parallel.hybrid_context_parallel) return;
  auto refuse = [&](bool given, const char* what, const char* cure) {
    if (given) out.push_back(concat("--hybrid-context-parallel: excludes ", what, "; ", cure));
  };
  const std::int64_t ranks = run.parallel.context_parallel_size * run.parallel.data_parallel_size;
  refuse(run.model.moe.any(), "--num-experts, whose losses are sums over whole sequences",
         "use --context-parallel-size alone");
  refuse(run.fp8.used(), "--fp8-format, whose scales the ranks of a sequence share",
         "train in bf16, or use --context-parallel-size alone");
  refuse(run.model.num_labels > 0 || run.data.preferences.any(),
         "objectives of whole samples (--num-labels, --objective)",
         "use --context-parallel-size alone");
  refuse(rope_depends_on_length(run.model), "--rope-scaling-type dynamic and longrope",
         "use --context-parallel-size alone");
  const std::int64_t longest = run.parallel.max_seqlen_per_dp_cp_rank * ranks;
  if (run.data.seq_length > longest && longest > 0) {
    out.push_back(concat("--seq-length: ", run.data.seq_length, " tokens do not fit ", ranks,
                         " ranks of --max-seqlen-per-dp-cp-rank ",
                         run.parallel.max_seqlen_per_dp_cp_rank, "; give at least ",
                         ceil_div(run.data.seq_length, ranks) + 1));
  }
}

// What a training run in f32 or f64 does anyway.
void check_residual(const RunConfig& run, Problems& out) {
  const Dtype dtype = run.precision.model_dtype();
  if (!run.model.fp32_residual_connection || size_of(dtype) == 2) return;
  out.push_back(concat("--fp32-residual-connection: the run is in ", name_of(dtype),
                       " throughout; add --bf16 or --fp16, or leave it out"));
}

void check_qk_clip(const RunConfig& run, Problems& out) {
  const QkClipConfig &qk = run.optim.qk, none;
  const bool set = qk.alpha != none.alpha || qk.threshold != none.threshold;
  if (set && !qk.qk_clip) {
    out.push_back(concat(qk.alpha != none.alpha ? "--qk-clip-alpha" : "--qk-clip-threshold",
                         ": does nothing without --qk-clip; add it"));
  }
  if (!qk.qk_clip) return;
  if (run.model.qk_layernorm && !run.model.multi_latent_attention) {
    out.push_back(
        "--qk-clip: excludes --qk-layernorm, which makes queries and keys of one size whatever "
        "their weights are; leave one out");
  }
  if (run.model.lora.used()) {
    out.push_back("--qk-clip: scales weights that --lora-rank freezes; leave one out");
  }
}

void check_fp8(const RunConfig& run, Problems& out) {
  const ParallelConfig& parallel = run.parallel;
  append(out, run.fp8.problems(run.model, run.precision.model_dtype(),
                               parallel.tensor_model_parallel_size,
                               parallel.expert_tensor_parallel_size));
  // Blockwise scales are loaded four at a time, one per row of a GEMM.
  std::int64_t tokens = run.batch.micro_batch_size * run.data.seq_length;
  std::int64_t parts = parallel.context_parallel_size * parallel.tensor_model_parallel_size;
  if (run.fp8.used() && run.fp8.scaling() == Fp8Scaling::kBlockwise && tokens % (4 * parts) != 0) {
    out.push_back(concat("--fp8-recipe: blockwise needs micro-batches of a multiple of ", 4 * parts,
                         " tokens, they have ", tokens,
                         "; change --seq-length or --micro-batch-size, or take tensorwise"));
  }
  ShardingStrategy strategy = run.parallel.data_parallel_sharding_strategy;
  if (run.runtime.exact && run.fp8.used() && run.fp8.scaling() != Fp8Scaling::kBlockwise) {
    out.push_back(
        "--exact: a scale of a whole tensor depends on all tokens of the batch; give "
        "--fp8-recipe blockwise, or leave out --fp8-format");
  }
  if (run.fp8.fp8_param_gather && strategy == ShardingStrategy::kNoShard) {
    out.push_back(
        "--fp8-param-gather: needs --data-parallel-sharding-strategy optim, optim_grads or "
        "optim_grads_params; without one nothing is gathered");
  }
}

// States of constant size: what a token's bits depend on, and where they are computed.
void check_recurrence(const RunConfig& run, Problems& out) {
  const bool mamba = run.model.has_mamba();
  if (run.model.num_layers < 1 || (!mamba && !run.model.has_delta())) return;
  const char* layers = mamba ? "Mamba layers" : "gated delta layers";
  if (run.runtime.exact) {
    out.push_back(concat("--exact: ", layers,
                         " round as steps cut their tokens, so that bits depend on the batch; "
                         "give --no-exact"));
  }
  if (run.runtime.device == DeviceKind::kCuda) {
    out.push_back(
        concat("--device: the kernels of ", layers, " run on the CPU only; give --device cpu"));
  }
}

void check_precision(const RunConfig& run, Problems& out) {
  append(out, run.precision.problems());
  append(out, run.base.problems());
  if (run.base.used() && run.fp8.used()) {
    out.push_back(
        "--quantize-base nf4: GEMMs of weights in NF4 are in the model's dtype; leave out "
        "--fp8-format and --fp4-format");
  }
  append(out, run.optim.state_problems(run.precision.model_dtype()));
  check_fp8(run, out);
  check_recurrence(run, out);
  if (run.precision.fp64 && run.runtime.device == DeviceKind::kCuda) {
    out.push_back("--fp64: is for the CPU; use --device cpu");
  }
  if (run.model.moe_training.router_dtype == RouterDtype::kF64 &&
      run.runtime.device == DeviceKind::kCuda) {
    out.push_back("--moe-router-dtype: fp64 is for the CPU; use fp32, or --device cpu");
  }
}

// The weights must come from one source, and the dense MLP must split into the experts.
void check_upcycling(const RunConfig& run, Problems& out) {
  const CheckpointConfig& checkpoint = run.checkpoint;
  if (!checkpoint.moe_use_upcycling) {
    if (checkpoint.moe_upcycling_granularity > 1) {
      out.push_back("--moe-upcycling-granularity: needs --moe-use-upcycling");
    }
    return;
  }
  if (checkpoint.loads_experts) return;  // the run goes on
  bool loads = !checkpoint.load.empty();
  bool begins = run.train.hf_model.empty() ? loads : !loads || !latest_step(checkpoint.load);
  if (!begins) {
    out.push_back(
        "--moe-use-upcycling: needs a dense model; give either --load DIR or --hf-model DIR");
  }
  if (run.model.hidden_size < 1) return;
  append(out, upcycling_problems(run.model, checkpoint.moe_upcycling_granularity));
}

void check_adapters(const RunConfig& run, Problems& out) {
  if (!run.model.lora.used()) return;
  auto refuse = [&](bool given, const char* flag, const char* why) {
    if (given) out.push_back(concat(flag, ": ", why));
  };
  const char* base =
      "the run trains an adapter and not the model; give --export-adapter, and merge "
      "it by bevatron convert --adapter --merge-lora";
  refuse(!run.train.export_hf.empty(), "--export-hf", base);
  refuse(!run.checkpoint.save_hf.empty(), "--save-hf", base);
  refuse(run.checkpoint.moe_use_upcycling, "--moe-use-upcycling",
         "excludes --lora-rank; make the model with experts first");
}

// Refuses modules that no layer of the model has.
void check_recompute(const RunConfig& run, Problems& out) {
  if (run.parallel.recompute_granularity != RecomputeGranularity::kSelective) return;
  const MoeConfig& moe = run.model.moe;
  for (const std::string& module : run.parallel.recompute_modules) {
    auto need = [&](bool there, const char* what) {
      if (there) return;
      out.push_back(concat("--recompute-modules: ", module, ", but the model has no ", what,
                           "; leave it out"));
    };
    if (module == "moe" || module == "moe_act") need(moe.any(), "experts");
    if (module == "shared_experts") need(moe.any() && moe.shared_expert_size > 0, "shared expert");
    if (module == "mla_up_proj") need(run.model.multi_latent_attention, "latent attention");
  }
}

// Patterns are matched against the parameter names of the model, if it can be built.
void check_param_groups(const RunConfig& run, Problems& out) {
  if (run.optim.groups == ParamGroupConfig()) return;
  std::vector<std::string> names;
  if (run.model.problems().empty() && lora_problems(run.model).empty()) {
    for (const Param& param : declare_params(run.model)) names.push_back(param.name);
  }
  append(out, run.optim.groups.problems(names, run.optim.min_lr));
}

void check_layout(const RunConfig& run, std::span<const std::int64_t> micro_batches,
                  Problems& out) {
  append(out, run.model.problems());
  check_ranks(run, out);
  check_tensor_parallel(run, out);
  check_pipeline(run, micro_batches, out);
  check_context_parallel(run, out);
  check_data_parallel(run, out);
  check_experts(run, out);
  append(out, offload_problems(run.parallel, run.model));
  check_recompute(run, out);
  check_precision(run, out);
  if (run.model.problems().empty()) append(out, lora_problems(run.model));
  check_param_groups(run, out);
}

}  // namespace

void RunConfig::fields(FieldList& list) {
  model.fields(list);
  parallel.fields(list);
  optim.fields(list);
  batch.fields(list);
  data.fields(list);
  loader.fields(list);
  precision.fields(list);
  fp8.fields(list);
  base.fields(list);
  train.fields(list);
  checkpoint.fields(list);
  log.fields(list);
  profile.fields(list);
  runtime.fields(list);
  add_megatron_flags(list);
}

std::vector<std::string> RunConfig::resolve_layout() {
  Problems problems = parallel.resolve();
  check_layout(*this, {}, problems);
  return problems;
}

std::vector<std::string> RunConfig::resolve_schedule() {
  derive_shape(*this);
  Problems problems = parallel.resolve();
  check_length(*this, problems);
  check_replay(*this, problems);
  append(problems, optim.resolve(train.train_iters, train.train_samples));
  batch.resolve(parallel.batch_ranks());
  check_schedules(*this, problems);
  return problems;
}

std::vector<std::string> RunConfig::resolve() {
  data.labels.token_types = model.encoder.token_types;
  data.labels.double_separator = model.family == "roberta";
  if (data.preferences.masks()) data.masked.bert_binary_head = model.encoder.next_sentence;
  Problems problems = resolve_schedule();
  check_layout(*this, micro_batch_counts(*this), problems);
  bool tests = !data.test_data_path.empty() || !data.per_split_data_args_path.empty();
  append(problems, train.resolve(tests));
  // Evaluation only may be a test only.
  bool test_only = data.has_own_token_files() && data.valid_data_path.empty() &&
                   data.per_split_data_args_path.empty();
  if (train.eval.skip_train && test_only) train.eval_interval = 0;
  check_evaluation(*this, problems);
  append(problems, profile.problems(train));
  append(problems, checkpoint.problems());
  check_upcycling(*this, problems);
  check_residual(*this, problems);
  check_hybrid_context(*this, problems);
  check_qk_clip(*this, problems);
  check_adapters(*this, problems);
  check_sequence(*this, problems);
  check_data(*this, problems);
  return problems;
}

std::vector<std::string> row_problems(const ParallelConfig& parallel) {
  if (!parallel.hybrid_context_parallel) return {};
  return {"--hybrid-context-parallel: shares out the batches of training; leave it out here"};
}

std::vector<std::string> model_conflicts(const Options& options, const FieldList& list,
                                         const ModelConfig& model, bool upcycled) {
  constexpr std::array<std::string_view, 11> kFree = {
      "hidden-dropout",          "attention-dropout",        "init-method-std", "rotary-base",
      "rotary-base-local",       "max-position-embeddings",  "mtp-num-layers",  "pad-token",
      "mtp-loss-scaling-factor", "fp32-residual-connection", "value-head"};
  Problems out;
  const ModelConfig given = canonical(model);
  for (const Setting& setting : options.settings()) {
    auto* entry = list.find_entry(setting.field);
    bool experts = entry->section == MoeConfig::kSection;
    if (upcycled && (experts || setting.field == "model-family")) continue;
    bool recurrent =
        entry->section == MambaConfig::kSection || entry->section == DeltaConfig::kSection;
    if (entry->section != "model" && !experts && !recurrent) continue;
    if (std::ranges::find(kFree, setting.field) != kFree.end()) continue;
    // A language model may get a head for sequence classification.
    if (setting.field == "num-labels" && model.num_labels == 0) continue;
    std::string has = entry->field.text();
    entry->field.set_items(setting.values);
    std::string asked = entry->field.text();
    // A value may be written differently: "1,1" for "1".
    bool same = asked == has ||
                (model.problems().empty() && differing_fields(given, canonical(model)).empty());
    entry->field.set_text(has);
    if (!same) {
      out.push_back(concat(setting.origin, ": --", setting.field, " ", asked,
                           " contradicts --hf-model, where it is ", has.empty() ? "empty" : has,
                           "; leave it out"));
    }
  }
  return out;
}

}  // namespace bev
