// One rank's share of a model in training: mesh, stage, parameters, optimizer, and the training
// step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "models/decoder.h"
#include "models/fp8_config.h"
#include "ops/moe.h"
#include "optim/optimizer.h"
#include "parallel/config.h"
#include "parallel/executor.h"
#include "parallel/param_store.h"
#include "parallel/pipeline_layout.h"
#include "parallel/recorded_step.h"
#include "parallel/router_load.h"

namespace bev {

class Device;
class Moment;

struct EngineOptions {
  ModelConfig model;
  ParallelConfig parallel;  // resolved
  OptimConfig optim;
  Dtype dtype = Dtype::kF32;
  Fp8Config fp8;
  std::uint64_t seed = 1234;
  int threads = 1;             // of this rank
  int local_rank = 0;          // on this machine
  bool deterministic = false;  // also where it costs speed
  bool record_steps = true;    // where the device can
  // How pipeline ranks train; null: as `parallel` says. Must outlive the engine.
  const ScheduleMaker* schedules = nullptr;
  bool gradients = true;                             // false: inference
  bool optimizer = true;                             // false: gradients are wanted, updates are not
  bool params_norm = false, zero_gradients = false;  // whether steps tell them
  std::string cache_folder;  // of choices that kernels make by measuring; "": none are kept
  Trace* trace = nullptr;    // of this rank; nullptr: nothing is recorded
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
  // Of main parameters after the update; of gradients, summed over the batch, elements that are 0.
  std::optional<double> params_norm = {};
  std::optional<std::int64_t> zero_gradients = {};
  bool finite = true;                    // loss and gradient; otherwise nothing was updated
  bool redone = false;                   // what was exchanged did not fit at first
  std::vector<RouterLoad> routers = {};  // of a training step, layer by layer
  // Of a training step, for each depth of multi-token prediction: mean over its own tokens.
  std::vector<double> future_losses = {};
  std::shared_ptr<const Moment> end = nullptr;  // of a training step; null as `mark` is
};

// Numbers that all ranks sum in a step, beside the losses of multi-token prediction.
inline constexpr std::int64_t kStepSums = 5;

MeshShape mesh_shape(const ParallelConfig& config);
// With the groups that this model needs.
MeshShape mesh_shape(const ParallelConfig& config, const ModelConfig& model);
BuildOptions build_options(const ParallelConfig& config);

// The stages of one pipeline rank.
using Stages = std::vector<std::unique_ptr<Decoder>>;
Stages build_stages(const ModelConfig& model, const ParallelConfig& parallel, const Fp8Config& fp8,
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
  const ParamStore& store() const { return *store_; }
  Optimizer* optimizer() { return optimizer_.get(); }
  Arena& arena() { return arena_; }

  // Forward and backward of a global batch (this rank's micro-batches of it), then the update.
  // Random numbers follow from seed and iteration.
  StepResult train_step(std::span<const MicroBatch> batches, const StepInput& input);
  // The same in two halves. The first starts a step without a wait for the device, the second waits
  // for the oldest one begun. A step that was not finite changes nothing, and neither do those that
  // were begun after it: finish_step forgets them, they are to be begun again. One whose exchanges
  // were too small changes nothing either, but finish_step does it again, with exact sizes, and
  // begins those after it again.
  void begin_step(std::span<const MicroBatch> batches, const StepInput& input);
  StepResult finish_step();
  // Whether the device computes beside the host, so that beginning a step early gains time.
  bool runs_ahead() const;
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

  // Whether work can be recorded now: a trace shows every call, and with exact sizes of what
  // experts exchange the host waits for them.
  bool can_record() const {
    bool traced = ctx_->trace != nullptr && ctx_->trace->recording();
    return records_ && !traced && (fixed_exchange_ || mesh_->shape().ep == 1);
  }
  // Host memory of activations; null where none are offloaded.
  const Arena* offloaded() const {
    return executor_->offloader() != nullptr ? &executor_->offloader()->host() : nullptr;
  }
  // Shapes of steps that the device has recorded.
  std::size_t recorded_steps() const { return recorded_.size(); }
  // Updates so far, for bias correction.
  std::int64_t updates() const { return updates_; }
  // Goes on from a state that another engine reached: its updates, and the seed of its steps.
  void resume(std::int64_t updates, std::uint64_t seed);
  // Is waited for before every update; null: nobody reads.
  void set_reader(StateReader* reader) { reader_ = reader; }
  // Memory of batches, beside the arena.
  Arena& inputs() { return inputs_; }
  // Memory of the host that the device reaches, for offloaded state of the optimizer.
  Arena& host_memory() { return host_memory_; }

 private:
  struct BegunStep {
    std::vector<MicroBatch> batches;  // to do it again, where that may be
    StepInput input;
    bool redone = false;
    double tokens = 0;  // of the global batch
    // The first of sums_; there after arrival.
    std::array<double, kStepSums> sums{};
    // The same of each depth of multi-token prediction; empty without.
    std::vector<double> future_tokens, future_sums;
    std::vector<std::byte> routers;     // as routers_, likewise
    std::shared_ptr<const Moment> end;  // of its work, before these arrive
    Work arrival, future_arrival, routers_arrival;
    double started = 0;  // of a step that is played back: all ranks have started it, after meeting
    Work meeting;
    void wait();
    bool lost_rows() const { return sums[kLostRows] > 0; }
  };

  class Parts;  // of a step, to be recorded

  // Fills in the weight of the global batch's tokens, and of each depth's.
  void count_tokens(std::span<const MicroBatch> batches, BegunStep& step);
  // The same, and sends what kernels read of the step.
  void send_inputs(std::span<const MicroBatch> batches, const StepInput& input, BegunStep& step);
  // The parts of a step.
  void begin_sums();
  void run_micro_batches(std::span<const MicroBatch> batches);
  void finish_sums();
  void update(double clip_grad);
  void sum_param_squares();

  void forward_backward(std::span<const MicroBatch> batches);
  // Whether steps can be recorded at all. Collective; the first rank says why not.
  bool decide_recording();
  std::string unrecorded_because() const;
  // The steps begun, the first of which lost rows, once more.
  void redo_steps();
  void forget_failure();
  RecordedStep* find_recorded(std::span<const MicroBatch> batches, double clip_grad);
  void play_back(RecordedStep& recorded, std::span<const MicroBatch> batches, BegunStep& step);
  StepResult result_of(const BegunStep& step, bool with_gradient) const;
  StepState* device_step() const;
  void fetch_results(BegunStep& step);
  const Schedule& schedule(std::size_t micro_batches, bool with_backward);
  std::string gather_findings(const FiniteProbe& probe, bool in_step);

  EngineOptions options_;
  PipelineLayout pipeline_;
  std::unique_ptr<Device> device_;
  Arena arena_, inputs_, host_memory_;
  Tensor device_step_;  // StepState
  // f64: the squares of the gradient and its zeros, the squares of parameters, the rows that were
  // lost where exchanges have a fixed size, the loss over all tokens, that of each depth of
  // multi-token prediction.
  Tensor sums_;
  static constexpr std::size_t kSquares = 0, kZeros = 1, kParamSquares = 2, kLostRows = 3,
                               kLoss = 4;
  double* sum(std::size_t which) const { return sums_.as<double>() + which; }
  bool fixed_exchange_ = false;  // of tokens for experts, in training steps
  RouterStatistics routers_;     // empty without experts
  std::int64_t updates_ = 0;
  StateReader* reader_ = nullptr;
  std::unique_ptr<Mesh> mesh_;
  Stages stages_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<Context> ctx_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Executor> executor_;
  // By micro-batches and whether with backwards.
  std::map<std::pair<std::int64_t, bool>, Schedule> schedules_;
  std::list<BegunStep> begun_;  // in order; what arrives is written to them where they are
  std::list<BegunStep> ended_;  // whose memory the next ones take
  bool records_ = false;
  std::unique_ptr<StepShape> last_shape_;
  std::vector<std::unique_ptr<RecordedStep>> recorded_;
};

}  // namespace bev
