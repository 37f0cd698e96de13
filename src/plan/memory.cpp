#include "plan/memory.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "base/divide.h"
#include "base/error.h"
#include "data/batch.h"
#include "kernels/gemm.h"
#include "kernels/loss.h"
#include "kernels/quantize.h"
#include "models/encoder_samples.h"
#include "ops/collective.h"
#include "ops/elementwise.h"
#include "ops/label_scores.h"
#include "ops/objective.h"
#include "ops/token_log_probs.h"
#include "parallel/encoder_objective.h"
#include "parallel/engine.h"
#include "parallel/pipeline/schedule_player.h"
#include "plan/phantom.h"

namespace bev {

namespace {

// Any loss of the scores of a head for sequence classification.
class SequenceScores final : public Objective {
 public:
  std::vector<std::string> terms() const override { return {"loss"}; }
  void add_weights(const Context&, const MicroBatch&, std::span<double> weights) const override {
    weights[0] += 1;
  }
  Var loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
           std::span<const Var> outputs, double*) const override {
    Var scores = label_scores(ctx, outputs[0], *stage.label_head(), batch.layout.tokens);
    Tensor gradient = ctx.allocate(scores.dtype(), scores.shape(), "gradients");
    return given_gradient(ctx, "scores", scores, ctx.allocate(ctx.wide(), {1}, "loss"),
                          std::move(gradient));
  }
};

// Any loss of the log-probabilities of completions.
class LogProbs final : public Objective {
 public:
  std::vector<std::string> terms() const override { return {"loss"}; }
  void add_weights(const Context&, const MicroBatch&, std::span<double> weights) const override {
    weights[0] += 1;
  }
  Var loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
           std::span<const Var> outputs, double*) const override {
    Var hidden = enter_tensor_parallel(ctx, outputs[0], batch.layout.tokens);
    Var logps = token_log_probs(ctx, hidden, batch.targets.targets, stage.head());
    const Param* critic = stage.value_head();
    Var values =
        critic != nullptr ? label_scores(ctx, outputs[0], *critic, batch.layout.tokens) : Var();
    Var loss = given(ctx, logps);
    return critic != nullptr ? add(ctx, loss, given(ctx, values)) : loss;
  }

 private:
  static Var given(Context& ctx, const Var& by) {
    Tensor gradient = ctx.allocate(by.dtype(), by.shape(), "gradients");
    return given_gradient(ctx, "log-probabilities", by, ctx.allocate(ctx.wide(), {1}, "loss"),
                          std::move(gradient));
  }
};

// Bytes of one allocation: the arena rounds up to 64.
std::int64_t tensor_bytes(std::int64_t elements, Dtype dtype) {
  std::int64_t bytes = elements * static_cast<std::int64_t>(size_of(dtype));
  return std::max<std::int64_t>(round_up(bytes, 64), 64);
}

ModelOptions model_options(const MemoryQuery& query) {
  ModelOptions options;
  options.model = query.model;
  options.parallel = query.parallel;
  options.optim = query.optim;
  options.dtype = query.dtype;
  options.fp8 = query.fp8;
  options.base = query.base;
  return options;
}

// Persistent state (weights, gradients, optimizer) of the ranks that hold one part of a stage.
class KeptState {
 public:
  KeptState(const MemoryQuery& query, const std::vector<Param*>& params, const MeshCoordinate& at)
      : query_(query), mesh_(mesh_shape(query.parallel, query.model)) {
    StoreOptions options =
        store_options(query.parallel, query.optim.dtypes, query.dtype, query.fp8);
    parts_ = {shard_count(options, mesh_, false), shard_count(options, mesh_, true)};
    std::vector<BucketItem> items;
    for (const Param* param : params) {
      ParamPart part = part_of(param->split, mesh_, at);
      items.push_back(bucket_item(*param, part));
      sizes_.push_back(items.back().elements);
      has_state_.push_back(param->trains && has_state(*param));
      kinds_.push_back(rule_of(query.optim, *param));
      parameters_ += param->split.local_shape(param->shape, part).numel();
    }
    layout_ = layout_buckets(items, bucket_rules(options, mesh_));
  }

  const std::vector<std::int64_t>& sizes() const { return sizes_; }

  // Fills in the rank at memory.at: neighbours in dp x cp (experts: in edp) share a copy of the
  // parameters.
  void fill(RankMemory& memory) const {
    auto stored = [&](ShardingStrategy from, Dtype dtype, BucketChoice choice) {
      bool cut = query_.parallel.data_parallel_sharding_strategy >= from;
      std::int64_t bytes =
          bucket_begins(layout_, dtype, cut ? parts_ : BucketParts(), choice).back();
      return tensor_bytes(bytes, Dtype::kU8);
    };
    OptimDtypes dtypes = query_.optim.dtypes.for_model(query_.dtype);
    memory.parameters = parameters_;
    memory.weights = stored(ShardingStrategy::kOptimGradsParams, query_.dtype, BucketChoice::kAll);
    memory.gradients =
        stored(ShardingStrategy::kOptimGrads, dtypes.main_grads, BucketChoice::kTrained);
    std::vector<OptimizerKind> kinds;
    std::vector<std::int64_t> sizes = updated_sizes(memory.at, kinds);
    std::vector<bool> offloaded = choose_offloaded(sizes, query_.optim.offloaded_fraction());
    StateSize on_device, on_host;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      (offloaded[i] ? on_host : on_device).add(sizes[i], kinds[i]);
    }
    StateTensors device(query_.optim, query_.dtype, on_device);
    StateTensors host(query_.optim, query_.dtype, on_host);
    if (query_.reference) memory.weights *= 2;
    memory.optimizer =
        bytes_of(device.numbers()) + bytes_of(device.scales()) + bytes_of(host.scales());
    memory.host_optimizer = bytes_of(host.numbers());
    if (query_.rollouts) memory.gathered = gathered_bytes();
  }

 private:
  // Whole buckets where values are sharded, gathered one by one.
  std::int64_t gathered_bytes() const {
    if (query_.parallel.data_parallel_sharding_strategy < ShardingStrategy::kOptimGradsParams) {
      return 0;
    }
    const auto begins = bucket_begins(layout_, query_.dtype, BucketParts(), BucketChoice::kAll);
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < layout_.buckets.size(); ++i) {
      sum += tensor_bytes(begins[i + 1] - begins[i], Dtype::kU8);
    }
    return sum;
  }

  static std::int64_t bytes_of(const std::vector<StateTensors::Flat>& tensors) {
    std::int64_t sum = 0;
    for (const auto& [dtype, elements] : tensors) {
      if (elements > 0) sum += tensor_bytes(elements, dtype);
    }
    return sum;
  }

  // Sizes of the shards that the rank updates, of parameters with optimizer state, and which
  // optimizer updates them.
  std::vector<std::int64_t> updated_sizes(const MeshCoordinate& at,
                                          std::vector<OptimizerKind>& kinds) const {
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (!has_state_[i]) continue;
      const BucketLayout::ParamSlot& place = layout_.places[i];
      const BucketLayout::Bucket& bucket = layout_.buckets[static_cast<std::size_t>(place.bucket)];
      std::int64_t parts = parts_.of(bucket);
      std::int64_t index = bucket.of_experts ? at.edp : at.cp + mesh_.cp * at.dp;
      Range mine = owned_range(place, sizes_[i], bucket_part_range(bucket, parts, index % parts));
      if (mine.size() == 0) continue;
      sizes.push_back(mine.size());
      kinds.push_back(kinds_[i]);
    }
    return sizes;
  }

  const MemoryQuery& query_;
  MeshShape mesh_;
  BucketParts parts_;
  std::int64_t parameters_ = 0;
  std::vector<std::int64_t> sizes_;
  std::vector<bool> has_state_;
  std::vector<OptimizerKind> kinds_;
  BucketLayout layout_;
};

std::vector<MicroBatch> phantom_batches(Context& ctx, const MemoryQuery& query,
                                        std::int64_t count) {
  auto rows = static_cast<std::size_t>(query.seq_length);
  TokenSample sample{std::vector<std::int32_t>(rows),
                     std::vector<std::int32_t>(rows),
                     std::vector<float>(rows),
                     {static_cast<std::int32_t>(query.seq_length)}};
  std::vector<TokenSample> samples(static_cast<std::size_t>(query.micro_batch_size), sample);
  add_encoder_fields(query.model, samples);
  std::vector<MicroBatch> batches;
  for (std::int64_t i = 0; i < count; ++i) {
    batches.push_back(make_micro_batch(ctx, samples, 0, mtp_spec(query.model)));
  }
  if (query.model.encoder.next_sentence) PairWeights(ctx, query.model).prepare(batches);
  return batches;
}

std::int64_t in_use(const Arena& arena) { return static_cast<std::int64_t>(arena.in_use()); }

// Bytes of the store other than weights and gradients.
std::int64_t step_bytes(const Arena& arena) {
  for (const auto& [tag, bytes] : arena.by_tag()) {
    if (tag == "step") return static_cast<std::int64_t>(bytes);
  }
  return 0;
}

// Number of micro-batches of an iteration to play. With a steady schedule every group of
// micro-batches reaches the same peak, plus the tokens of the additional batches. Any other may
// reach its peak only once, so it is played completely.
std::int64_t played_micro_batches(const PipelineShape& shape, std::int64_t micro_batches) {
  if (!traits_of(shape.schedule).steady) return micro_batches;
  constexpr std::int64_t kGroups = 5;
  std::int64_t group = shape.group_for(micro_batches);
  return std::min(micro_batches, kGroups * group + micro_batches % group);
}

struct ActivationBytes {
  std::int64_t device = 0, host = 0;
  std::int64_t at_update = 0;  // of `device`, when the optimizer runs
};

// The phantom device of one rank: the store of its parameters and the context of a step.
class PhantomRank {
 public:
  PhantomRank(const MemoryQuery& query, const Stages& stages, const MeshCoordinate& at,
              const Kernels& kernels)
      : shape_(mesh_shape(query.parallel, query.model)),
        world_(static_cast<int>(rank_of(shape_, at)), static_cast<int>(shape_.size())),
        mesh_(world_, shape_),
        arena_(make_phantom_memory()),
        store_(params_of(stages), mesh_, arena_, kernels, Stream{nullptr, nullptr},
               store_options(query.parallel, query.optim.dtypes, query.dtype, query.fp8)),
        kept_(in_use(arena_) - step_bytes(arena_)),
        step_(arena_, Dtype::kU8, {sizeof(StepState)}, "step"),
        ctx_{kernels,    Stream{nullptr, nullptr},
             arena_,     arena_,
             mesh_,      store_,
             store_,     static_cast<const StepState*>(step_.view().data),
             query.dtype} {
    ctx_.training = true;
  }

  Context& ctx() { return ctx_; }
  ParamStore& store() { return store_; }
  Arena& arena() { return arena_; }
  // Optimizers in host memory then take memory, but compute nothing.
  void skip_updates() { static_cast<StepState*>(step_.view().data)->skip = 1; }
  std::int64_t kept() const { return kept_; }  // bytes of weights and gradients

 private:
  MeshShape shape_;
  PhantomWorld world_;
  Mesh mesh_;
  Arena arena_;
  ParamStore store_;
  std::int64_t kept_;
  Tensor step_;
  Context ctx_;
};

// Memory of an optimizer that updates whole matrices: its states, and the most that an update
// needs.
struct MatrixBytes {
  std::int64_t states = 0, work = 0;
};
MatrixBytes matrix_bytes(const MemoryQuery& query, const Stages& stages, const MeshCoordinate& at) {
  if (!needs_matrices(query.optim.optimizer)) return {};
  PhantomRank rank(query, stages, at, phantom_kernels());
  Arena host(make_phantom_memory());
  OptimConfig config = query.optim;
  config.qk.qk_clip = false;  // its memory is that of a step
  Optimizer optimizer(rank.ctx(), rank.store().optim_ranges(), rank.store().shared_params(), config,
                      &host);
  MatrixBytes bytes;
  for (const MatrixState& state : *optimizer.matrix_states()) {
    bytes.states += tensor_bytes(state.memory.numel(), state.memory.dtype());
  }
  const std::int64_t before = in_use(rank.arena());
  rank.arena().reset_peak();
  rank.skip_updates();
  optimizer.step(rank.ctx());
  bytes.work = static_cast<std::int64_t>(rank.arena().peak()) - before;
  return bytes;
}

// Peaks of an iteration of Engine::train_step above the persistent state, on the phantom device.
ActivationBytes activation_bytes(const MemoryQuery& query, const PipelineLayout& layout,
                                 const Stages& stages, const MeshCoordinate& at) {
  LossKernels loss = phantom_kernels().loss;
  GemmKernels gemm = phantom_kernels().gemm;
  QuantizeKernels quantize = phantom_kernels().quantize;
  if (query.device != nullptr) {
    loss.logits = query.device->loss.logits;
    gemm.packed_bytes = query.device->gemm.packed_bytes;
    quantize.takes_nf4 = query.device->quantize.takes_nf4;
  }
  Kernels kernels = with_table(with_table(with_table(phantom_kernels(), loss), gemm), quantize);
  PhantomRank rank(query, stages, at, kernels);
  Context& ctx = rank.ctx();
  ParamStore& store = rank.store();
  const Arena& arena = rank.arena();

  std::int64_t played = played_micro_batches(layout.shape, query.micro_batches);
  std::int64_t before = in_use(arena);
  std::vector<MicroBatch> batches = phantom_batches(ctx, query, played);
  std::int64_t batch_bytes = in_use(arena) - before;
  PipelineShape pipeline = layout.shape;
  pipeline.group_size = pipeline.group_for(query.micro_batches);
  Schedule schedule = make_schedules(pipeline, played)[static_cast<std::size_t>(at.pp)];
  std::unique_ptr<Executor> executor = make_executor(ctx, layout, stages, model_options(query));
  const std::unique_ptr<Objective> own = default_objective(query.model);
  const bool encoder = query.model.encoder.encoder;
  SequenceScores scores;
  LogProbs log_probs;
  const Objective& objective = encoder                      ? *own
                               : query.model.num_labels > 0 ? static_cast<const Objective&>(scores)
                               : query.log_probs ? static_cast<const Objective&>(log_probs)
                                                 : *own;
  const QkClipConfig& qk = query.optim.qk;
  MetricOptions reports;
  reports.max_attention_logit = query.max_attention_logit;
  reports.clips_logits = qk.qk_clip;
  StepMetrics metrics(ctx, query.model, objective, reports, true);
  std::optional<QkClip> clip;
  if (qk.qk_clip) clip.emplace(ctx, qk, store.shared_params(), std::vector<RuleRange>());
  ctx.metrics = &metrics.block();
  ctx.routers = metrics.routers();
  if (query.parallel.moe_expert_rank_capacity_factor > 0) ctx.lost_rows = metrics.lost_rows();
  // The second iteration gathers ahead what it has seen the first one use.
  for (int iteration = 0; iteration < (query.parallel.overlap_param_gather ? 2 : 1); ++iteration) {
    store.begin_step(played);
    executor->run(schedule, batches, true, objective, metrics.terms());
    store.finish_gradients();
  }
  std::int64_t more = (query.micro_batches - played) * (batch_bytes / played);
  const Offloader* offloader = executor->offloader();
  return {static_cast<std::int64_t>(arena.peak()) - rank.kept() + more,
          offloader ? static_cast<std::int64_t>(offloader->host().peak()) : 0,
          in_use(arena) - rank.kept() + more};
}

void count_parameters(const MemoryQuery& query, MemoryPlan& plan) {
  for (const Param& param : declare_params(query.model)) {
    std::string_view name = param.name;
    bool is_embedding = name.starts_with("embedding.") || name.starts_with("output_layer.") ||
                        name.starts_with("score.");
    plan.parameters += param.shape.numel();
    if (is_embedding) plan.embedding_parameters += param.shape.numel();
  }
}

bool has_recurrence(const ModelConfig& model) {
  return std::ranges::any_of(layer_specs(model), [](const LayerSpec& spec) {
    return spec.mixer != nullptr && spec.mixer->recurrent;
  });
}

// Plans the ranks at one pipeline position. Ranks with parts of equal size have equal activations.
void plan_pipeline_rank(const MemoryQuery& query, const PipelineLayout& layout,
                        std::int64_t in_flight, std::int64_t pipeline_rank, MemoryPlan& plan) {
  MeshShape mesh = mesh_shape(query.parallel, query.model);
  Stages stages = build_stages(model_options(query), layout, pipeline_rank);
  // Where the chunks of a sequence differ in length, so do the ranks that hold them. The chunks of
  // the last rank are neighbours, over which a recurrence passes at once.
  bool even = query.seq_length % (2 * mesh.cp) == 0 && !has_recurrence(query.model);
  std::int64_t tokens = query.micro_batch_size * query.seq_length / mesh.cp;
  std::map<std::vector<std::int64_t>, ActivationBytes> known;
  std::map<std::array<std::int64_t, 3>, KeptState> states;  // by tp, etp, ep
  for (std::int64_t tp = 0; tp < mesh.tp; ++tp) {
    for (std::int64_t part = 0; part < mesh.cp * mesh.dp; ++part) {
      std::int64_t cp = part % mesh.cp;
      RankMemory memory;
      memory.rank = rank_of(mesh, {tp, cp, part / mesh.cp, pipeline_rank});
      memory.at = coordinate_of(mesh, memory.rank);
      std::array<std::int64_t, 3> place = {tp, memory.at.etp, memory.at.ep};
      const KeptState& kept =
          states.try_emplace(place, query, params_of(stages), memory.at).first->second;
      std::vector<std::int64_t> key = kept.sizes();
      key.push_back(even ? shard_range(tokens, mesh.tp, tp).size() : tp);
      key.push_back(even ? 0 : cp);
      if (!known.contains(key)) {
        known[key] = activation_bytes(query, layout, stages, memory.at);
      }
      memory.in_flight = in_flight;
      const MatrixBytes matrices = matrix_bytes(query, stages, memory.at);
      memory.activations = std::max(known[key].device, known[key].at_update + matrices.work);
      memory.host_activations = known[key].host;
      kept.fill(memory);
      memory.optimizer += matrices.states;
      plan.ranks[static_cast<std::size_t>(memory.rank)] = memory;
    }
  }
}

}  // namespace

MemoryPlan plan_memory(const MemoryQuery& query) {
  BEV_CHECK(query.seq_length > 0 && query.micro_batch_size > 0 && query.micro_batches > 0,
            ErrorKind::kConfig, "memory plan: ", query.micro_batches, " micro-batches of ",
            query.micro_batch_size, " x ", query.seq_length, " tokens");
  MeshShape mesh = mesh_shape(query.parallel, query.model);
  MemoryPlan plan;
  count_parameters(query, plan);
  plan.ranks.resize(static_cast<std::size_t>(mesh.size()));
  PipelineLayout layout = pipeline_layout(query.model.num_layers, query.parallel);
  ScheduleReport report = play_schedules(
      layout.shape, make_schedules(layout.shape, query.micro_batches), query.micro_batches, true);
  for (std::int64_t rank = 0; rank < mesh.pp; ++rank) {
    plan_pipeline_rank(query, layout, report.peak_in_flight[static_cast<std::size_t>(rank)], rank,
                       plan);
  }
  return plan;
}

}  // namespace bev
