// One rank's share of a model in training: mesh, stage, parameters, optimizer, and the training
// step.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder.h"
#include "optim/optimizer.h"
#include "parallel/config.h"
#include "parallel/executor.h"
#include "parallel/param_store.h"
#include "parallel/pipeline_layout.h"

namespace bev {

struct EngineOptions {
  ModelConfig model;
  ParallelConfig parallel;  // resolved
  OptimConfig optim;
  Dtype dtype = Dtype::kF32;
  std::uint64_t seed = 1234;
  int threads = 1;             // of this rank
  int local_rank = 0;          // on this machine
  bool deterministic = false;  // also where it costs speed
  bool gradients = true;       // false: inference
  bool optimizer = true;       // false: gradients are wanted, updates are not
};

struct StepInput {
  std::int64_t iteration = 0;
  double lr = 0, weight_decay = 0;
  double loss_scale = 1;
  double clip_grad = 0;  // 0: no clipping
};

struct StepResult {
  double loss = 0;       // mean over the tokens of the global batch
  double tokens = 0;     // weight of them
  double grad_norm = 0;  // before clipping, unscaled
  bool finite = true;    // loss and gradient; otherwise nothing was updated
};

MeshShape mesh_shape(const ParallelConfig& config);
// With the groups that this model needs.
MeshShape mesh_shape(const ParallelConfig& config, const ModelConfig& model);
BuildOptions build_options(const ParallelConfig& config);

// The stages of one pipeline rank.
using Stages = std::vector<std::unique_ptr<Decoder>>;
Stages build_stages(const ModelConfig& model, const ParallelConfig& parallel,
                    const PipelineLayout& layout, std::int64_t rank);
std::vector<Param*> params_of(const Stages& stages);
std::unique_ptr<Executor> make_executor(Context& ctx, const PipelineLayout& layout,
                                        const Stages& stages, const ParallelConfig& parallel);

class Engine {
 public:
  Engine(World& world, const Kernels& kernels, const EngineOptions& options);
  ~Engine();

  const EngineOptions& options() const { return options_; }
  Context& ctx() { return *ctx_; }
  const Mesh& mesh() const { return *mesh_; }
  const PipelineLayout& pipeline() const { return pipeline_; }
  // This rank's stage, where it has one.
  const Decoder& stage() const;
  // The last stage, on the ranks of it.
  const Decoder& head_stage() const;
  ParamStore& store() { return *store_; }
  Optimizer* optimizer() { return optimizer_.get(); }
  Arena& arena() { return arena_; }

  // Forward and backward of a global batch (this rank's micro-batches of it), then the update.
  // Random numbers follow from seed and iteration.
  StepResult train_step(std::span<const MicroBatch> batches, const StepInput& input);
  // Forward, backward and gradient sums without an update: gradients of the mean loss stay in the
  // store.
  StepResult gradients(std::span<const MicroBatch> batches, const StepInput& input);
  // Mean loss without gradients, dropout off.
  StepResult evaluate(std::span<const MicroBatch> batches);
  // Hidden states after the last layer, dropout off; they go to the sink on the last stage's ranks.
  void forward_hidden(std::span<const MicroBatch> batches, HiddenSink& sink);

  // Runs the step again with every result checked, without an update; what it says of the first bad
  // tensor anywhere ("" when all are finite). Every rank gets the same text.
  std::string find_nonfinite(std::span<const MicroBatch> batches, const StepInput& input);

  // Updates so far, for bias correction.
  std::int64_t updates() const { return step_.update; }

 private:
  // What a step's numbers follow from: f64 [1] each, on the device, the same on all ranks.
  struct StepSums {
    double tokens = 0;  // weight of the global batch
    Tensor loss, gradient_squares;
  };
  StepSums forward_backward(std::span<const MicroBatch> batches, const StepInput& input);
  double count_tokens(std::span<const MicroBatch> batches);
  Tensor sum_losses(std::span<const MicroBatch> batches, const std::vector<Tensor>& token_losses);
  // Waits for the device.
  StepResult read_sums(const StepSums& sums, double loss_scale);
  StepState* device_step() const;
  const Schedule& schedule(std::size_t micro_batches, bool with_backward);
  std::string gather_findings(const FiniteProbe& probe, bool in_step);

  EngineOptions options_;
  PipelineLayout pipeline_;
  std::unique_ptr<Device> device_;
  Arena arena_;
  StepState step_;      // as it was sent to the device
  Tensor device_step_;  // what kernels read
  std::unique_ptr<Mesh> mesh_;
  Stages stages_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<Context> ctx_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Executor> executor_;
  // By micro-batches and whether with backwards.
  std::map<std::pair<std::int64_t, bool>, Schedule> schedules_;
};

}  // namespace bev
