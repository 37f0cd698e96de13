// The training engine of one rank: runs the forward and backward of a model, reduces gradients,
// updates weights, and tracks the steps in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "optim/optimizer.h"
#include "parallel/objective.h"
#include "parallel/rank_model.h"
#include "parallel/step.h"
#include "parallel/step_graph.h"
#include "parallel/step_metrics.h"

namespace bev {

struct TrainOptions : MetricOptions {
  bool optimizer = true;  // false: computes gradients without updates
  // The training objective; null: that of the model (encoder_objective.h). Must outlive the engine.
  const Objective* objective = nullptr;
  // The pipeline schedules; null: those of `parallel`. Must outlive the engine.
  const ScheduleMaker* schedules = nullptr;
};

// Options of a rank that trains one model.
struct EngineOptions : RankOptions, ModelOptions, TrainOptions {};

class Engine {
 public:
  // Trains a model that may share its rank with other models. The model must outlive the engine.
  Engine(RankModel& model, const TrainOptions& options);
  // Creates a rank with one model, both owned by the engine.
  Engine(World& world, const Kernels& kernels, const EngineOptions& options);
  ~Engine();

  RankModel& model() { return model_; }
  const RankModel& model() const { return model_; }
  const Objective& objective() const { return *objective_; }
  Optimizer* optimizer() { return optimizer_.get(); }

  // Prepares every batch before its step, in place of what the default objective needs; null: none.
  // Must outlive its use.
  void set_preparation(BatchPreparation* preparation) { preparation_ = preparation; }
  // To be called for the micro-batches of each step or evaluation. Collective.
  void prepare(std::span<MicroBatch> batches) {
    if (preparation_ != nullptr) preparation_->prepare(batches);
  }

  // Runs forward and backward over this rank's micro-batches of a global batch, then the optimizer.
  // Random numbers depend on the seed and the iteration only.
  StepResult train_step(std::span<const MicroBatch> batches, const StepInput& input);
  // train_step in two halves. begin_step() enqueues a step without waiting for the device and takes
  // its batch; finish_step() waits for the oldest step begun.
  //
  // A step with a non-finite loss or gradient updates nothing, and neither do the steps begun after
  // it; these are not in flight any more, and begin_again() starts them anew. A step whose
  // fixed-size all-to-all buffers overflowed updates nothing either, but finish_step() repeats it
  // with exact sizes and begins the later steps again.
  void begin_step(StepBatch batch, const StepInput& input);
  struct Finished {
    StepResult result;
    StepInFlight step;
  };
  Finished finish_step();
  // Steps in flight, and steps to begin again after a bad one, oldest first.
  const std::list<StepInFlight>& in_flight() const { return flights_; }
  // Called after a non-finite step: begins the later steps again. input_for(step, place) returns
  // the new input of a step, where `place` is its index in in_flight().
  template <class InputFor>
  void begin_again(const InputFor& input_for) {
    std::size_t place = 0;
    for (StepInFlight& step : flights_) {
      step.input = input_for(step, place++);
      begin(step.batch.micro_batches, step.input);
    }
  }

  // Runs forward, backward and gradient reduction without an update. The gradients of the mean loss
  // remain in the store.
  StepResult gradients(std::span<const MicroBatch> batches, const StepInput& input);
  // Returns the mean loss, without gradients and with dropout off.
  StepResult evaluate(std::span<const MicroBatch> batches);

  // Runs the step again without an update and checks every result. Returns a description of the
  // first non-finite tensor on any rank, or "" if all are finite. Every rank returns the same text.
  std::string find_nonfinite(std::span<const MicroBatch> batches, const StepInput& input);

  // Runs the step without an update and shows every result and gradient of this rank to the sink;
  // the gradients of the mean loss remain in the store. No step may be in flight.
  void show_tensors(std::span<const MicroBatch> batches, const StepInput& input, TensorSink& sink);

  // Called after the weights of the model were overwritten: the master weights are copied from
  // them.
  void weights_written();

  // Host memory of offloaded activations; null if none are offloaded.
  const Arena* offloaded() const;
  // Number of step shapes that were captured as CUDA graphs.
  std::size_t captured_steps() const { return graphs_.size(); }
  // Number of updates so far, for Adam's bias correction.
  std::int64_t updates() const { return updates_; }
  // Seed of the random numbers of the steps.
  std::uint64_t seed() const { return seed_; }
  // Continues from the state of another engine: its update count, and the seed of its steps.
  void resume(std::int64_t updates, std::uint64_t seed);
  // Every update waits for the reader; null: no reader.
  void set_reader(StateReader* reader) { reader_ = reader; }

 private:
  // A step that was enqueued on the device, and the results that come back.
  struct BegunStep {
    std::span<const MicroBatch> batches;  // owned by the step in flight, or by the caller
    StepInput input;
    bool redone = false;
    std::vector<double> weights;                 // of the objective's terms, over the global batch
    std::vector<double> sums;                    // copy of the metric block; valid after `arrival`
    std::shared_ptr<const DeviceTimestamp> end;  // device time after its work, before `arrival`
    Work arrival;
    double started = 0;  // CUDA graphs: all ranks have started; valid after `meeting`
    Work meeting;
    void clear();
    void wait();
  };

  class Parts;  // the StepParts to capture

  void build(const TrainOptions& options);
  Context& ctx() { return model_.ctx(); }
  const Mesh& mesh() const { return model_.mesh(); }
  ParamStore& store() { return model_.store(); }
  const ModelOptions& options() const { return model_.options(); }
  // Fills in the weights of the objective's terms over the global batch.
  void count_weights(std::span<const MicroBatch> batches, BegunStep& step);
  // Calls count_weights() and sends the step state that kernels read.
  void send_inputs(std::span<const MicroBatch> batches, const StepInput& input, BegunStep& step);
  void begin(std::span<const MicroBatch> batches, const StepInput& input);
  StepResult finish();
  // The phases of a step.
  void run_micro_batches(std::span<const MicroBatch> batches);
  void finish_sums();
  void update(double clip_grad);

  void forward_backward(std::span<const MicroBatch> batches);
  // Whether steps can be captured as CUDA graphs at all. Collective; the first rank logs why not.
  bool decide_capturing();
  std::string uncaptured_because() const;
  // Whether this rank may capture now. With exact all-to-all sizes it may not, because the host
  // waits for the sizes.
  bool can_capture() const;
  // Repeats the begun steps; the first of them lost rows in a fixed-size all-to-all.
  void redo_steps();
  void forget_failure();
  void launch(StepGraph& graph, std::span<const MicroBatch> batches, BegunStep& step);
  StepResult result_of(const BegunStep& step, bool with_gradient);
  void fetch_results(BegunStep& step);
  const Schedule& training_schedule(std::size_t micro_batches);
  std::string gather_findings(const FiniteProbe& probe, bool in_step);

  std::unique_ptr<Rank> own_rank_;        // if the engine owns the rank
  std::unique_ptr<RankModel> own_model_;  // if the engine owns the model
  RankModel& model_;
  TrainOptions train_;
  std::unique_ptr<Objective> own_objective_;
  const Objective* objective_;
  std::uint64_t seed_;
  std::unique_ptr<StepMetrics> metrics_;
  bool fixed_exchange_ = false;  // fixed-size all-to-all for MoE tokens in training steps
  std::int64_t updates_ = 0;
  StateReader* reader_ = nullptr;
  std::unique_ptr<BatchPreparation> own_preparation_;
  BatchPreparation* preparation_ = nullptr;
  std::unique_ptr<Optimizer> optimizer_;
  std::map<std::size_t, Schedule> schedules_;  // by number of micro-batches
  std::list<StepInFlight> flights_;
  std::list<BegunStep> begun_;  // in order; results are written into them in place
  std::list<BegunStep> ended_;  // finished steps whose memory is reused
  bool captures_ = false;
  StepGraphs graphs_;
};

}  // namespace bev
