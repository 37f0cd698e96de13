// One rank's share of a model: its pipeline stages, the store of their parameters, and the context
// of their ops. A rank may host several models, each with or without gradients; an Engine adds
// training.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "models/base_quantization.h"
#include "models/fp8_config.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "parallel/config.h"
#include "parallel/config_mapping.h"
#include "parallel/executor.h"
#include "parallel/pipeline/pipeline_layout.h"
#include "parallel/rank.h"
#include "parallel/store/param_store.h"

namespace bev {

struct ModelOptions {
  ModelConfig model;
  ParallelConfig parallel;  // resolved
  OptimConfig optim;        // its dtypes are the dtypes of gradients
  Dtype dtype = Dtype::kF32;
  Fp8Config fp8;
  BaseQuantization base;
  std::uint64_t seed = 1234;
  bool gradients = true;  // false: frozen, without gradient memory
};

// The stages of one pipeline rank.
using Stages = std::vector<std::unique_ptr<ModelStage>>;
// Also applies the settings of the parameter groups.
Stages build_stages(const ModelOptions& options, const PipelineLayout& layout, std::int64_t rank);
std::vector<Param*> params_of(const Stages& stages);
std::unique_ptr<Executor> make_executor(Context& ctx, const PipelineLayout& layout,
                                        const Stages& stages, const ModelOptions& options);

class RankModel {
 public:
  // Initialises the parameters. Collective.
  RankModel(Rank& rank, const ModelOptions& options);
  ~RankModel();

  const ModelOptions& options() const { return options_; }
  Rank& rank() { return rank_; }
  Context& ctx() { return *ctx_; }
  const Mesh& mesh() const { return mesh_; }
  const PipelineLayout& pipeline() const { return pipeline_; }
  // This rank's stage; the rank must have exactly one.
  const ModelStage& stage() const;
  // The last stage; this rank must hold it.
  const ModelStage& head_stage() const;
  ParamStore& store() { return *store_; }
  const ParamStore& store() const { return *store_; }
  Executor& executor() { return *executor_; }
  // In device memory; ops read it through the context.
  StepState* device_step() const { return static_cast<StepState*>(step_.view().data); }

  // This rank's schedule of forwards over `micro_batches`.
  const Schedule& forward_schedule(std::size_t micro_batches);
  // Runs a forward without gradients and with dropout off. The sink receives the outputs on the
  // ranks of the last stage.
  void forward_outputs(std::span<const MicroBatch> batches, OutputSink& sink);

 private:
  ModelOptions options_;
  Rank& rank_;
  PipelineLayout pipeline_;
  const Mesh& mesh_;
  Tensor step_;  // StepState
  Stages stages_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<Context> ctx_;
  std::unique_ptr<Executor> executor_;
  std::map<std::size_t, Schedule> forward_schedules_;
};

}  // namespace bev
