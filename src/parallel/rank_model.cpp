#include "parallel/rank_model.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/device.h"
#include "optim/update_rule.h"

namespace bev {

Stages build_stages(const ModelOptions& options, const PipelineLayout& layout, std::int64_t rank) {
  BuildOptions build = build_options(options.parallel);
  build.fp8 = options.fp8;
  build.shared_embedding = layout.embedding_ranks(options.model).size() > 1;
  Stages stages;
  Param* embedding = nullptr;
  for (std::int64_t chunk = 0; chunk < layout.shape.chunks; ++chunk) {
    stages.push_back(make_stage(options.model, layout.stage_at(rank, chunk), build, embedding));
    embedding = stages.back()->embedding();
  }
  std::vector<Param*> params = params_of(stages);
  apply_rules(options.optim.groups.rules(), params);
  scale_rates(options.optim, options.model.mup_width(), params);
  options.base.apply(params, !options.gradients);
  return stages;
}

std::vector<Param*> params_of(const Stages& stages) {
  std::vector<Param*> params;
  for (const auto& stage : stages) {
    std::vector<Param*> more = stage->all_params();
    params.insert(params.end(), more.begin(), more.end());
  }
  return params;
}

namespace {

// For each stage, whether a parameter of an earlier stage trains. Each rank computes it without
// communication.
std::vector<bool> upstream_trains(const ModelOptions& options, const PipelineLayout& layout) {
  std::vector<bool> trains(static_cast<std::size_t>(layout.shape.stages()));
  for (std::int64_t rank = 0; rank < layout.shape.ranks; ++rank) {
    const Stages stages = build_stages(options, layout, rank);
    for (std::size_t chunk = 0; chunk < stages.size(); ++chunk) {
      std::int64_t stage = layout.shape.stage_at(rank, static_cast<std::int64_t>(chunk));
      trains[static_cast<std::size_t>(stage)] = std::ranges::any_of(
          stages[chunk]->all_params(), [](const Param* p) { return p->trains; });
    }
  }
  // Shifts the flags from "this stage trains" to "an earlier stage trains".
  bool before = false;
  for (std::vector<bool>::reference stage : trains) {
    bool here = stage;
    stage = before;
    before = before || here;
  }
  return trains;
}

}  // namespace

std::unique_ptr<Executor> make_executor(Context& ctx, const PipelineLayout& layout,
                                        const Stages& stages, const ModelOptions& options) {
  const ParallelConfig& parallel = options.parallel;
  std::vector<const ModelStage*> chunks;
  for (const auto& stage : stages) chunks.push_back(stage.get());
  return std::make_unique<Executor>(
      ctx, layout.shape, std::move(chunks),
      ExecutorOptions{.overlap = parallel.overlap_p2p_communication,
                      .delay_wgrad = parallel.delay_wgrad_compute,
                      .offload = parallel.offload.policy(),
                      .upstream_trains = upstream_trains(options, layout)});
}

RankModel::RankModel(Rank& rank, const ModelOptions& options)
    : options_(options),
      rank_(rank),
      pipeline_(pipeline_layout(options.model.num_layers, options.parallel)),
      mesh_(rank.mesh(mesh_shape(options.parallel, options.model))),
      step_(rank.arena(), Dtype::kU8, {sizeof(StepState)}, "step"),
      stages_(build_stages(options, pipeline_, mesh_.at().pp)) {
  StoreOptions store =
      store_options(options.parallel, options.optim.dtypes, options.dtype, options.fp8);
  store.gradients = options.gradients;
  const Kernels& kernels = rank.kernels();
  Stream stream = rank.stream();
  store_ =
      std::make_unique<ParamStore>(params_of(stages_), mesh_, rank.arena(), kernels, stream, store);
  store_->initialise(options.seed);
  ctx_ = std::unique_ptr<Context>(new Context{kernels, stream, rank.arena(), rank.inputs(), mesh_,
                                              *store_, *store_, device_step(), options.dtype});
  ctx_->trace = rank.options().trace;
  StepState fresh;
  kernels.device.upload(stream, &fresh, step_);
  executor_ = make_executor(*ctx_, pipeline_, stages_, options);
}

RankModel::~RankModel() = default;

const ModelStage& RankModel::stage() const {
  BEV_CHECK(stages_.size() == 1, ErrorKind::kInternal, "rank model: ", stages_.size(),
            " stages on this rank");
  return *stages_.front();
}

const ModelStage& RankModel::head_stage() const {
  BEV_CHECK(pipeline_.holds_head(mesh_.at().pp), ErrorKind::kInternal, "rank model: pipeline rank ",
            mesh_.at().pp, " has no head");
  return *stages_.back();
}

const Schedule& RankModel::forward_schedule(std::size_t micro_batches) {
  auto [found, added] = forward_schedules_.try_emplace(micro_batches);
  if (added) {
    auto lists = make_forward_schedules(pipeline_.shape, static_cast<std::int64_t>(micro_batches));
    found->second = std::move(lists[static_cast<std::size_t>(mesh_.at().pp)]);
  }
  return found->second;
}

void RankModel::forward_outputs(std::span<const MicroBatch> batches, OutputSink& sink) {
  executor_->run_outputs(forward_schedule(batches.size()), batches, sink);
}

}  // namespace bev
