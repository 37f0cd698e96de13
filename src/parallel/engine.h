// Trains one rank's share of a model: optimizer, objective, and the steps in flight.
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
  bool optimizer = true;  // false: gradients are wanted, updates are not
  // What the model is trained for; null: NextToken. Must outlive the engine.
  const Objective* objective = nullptr;
  // How pipeline ranks train; null: as `parallel` says. Must outlive the engine.
  const ScheduleMaker* schedules = nullptr;
};

// All of a rank that trains one model.
struct EngineOptions : RankOptions, ModelOptions, TrainOptions {};

class Engine {
 public:
  // Trains a model that others may share a rank with. It must outlive the engine.
  Engine(RankModel& model, const TrainOptions& options);
  // The usual case: a rank with one model, which the engine owns.
  Engine(World& world, const Kernels& kernels, const EngineOptions& options);
  ~Engine();

  RankModel& model() { return model_; }
  const RankModel& model() const { return model_; }
  const Objective& objective() const { return *objective_; }
  Optimizer* optimizer() { return optimizer_.get(); }

  // Forward and backward of a global batch (this rank's micro-batches of it), then the update.
  // Random numbers follow from seed and iteration.
  StepResult train_step(std::span<const MicroBatch> batches, const StepInput& input);
  // The same in two halves. The first starts a step without a wait for the device and keeps its
  // batch, the second waits for the oldest one begun.
  //
  // A step that was not finite changes nothing, and neither do those that were begun after it: they
  // are in flight no more, and begin_again() starts them anew. One whose exchanges were too small
  // changes nothing either, but finish_step does it again, with exact sizes, and begins those after
  // it again.
  void begin_step(StepBatch batch, const StepInput& input);
  struct Finished {
    StepResult result;
    StepInFlight step;
  };
  Finished finish_step();
  // Steps in flight, and those to be begun again after a bad one, oldest first.
  const std::list<StepInFlight>& in_flight() const { return flights_; }
  // After a step that was not finite: begins the later ones again; input_for(step, place) gives
  // each its new input, `place` being its place in in_flight().
  template <class InputFor>
  void begin_again(const InputFor& input_for) {
    std::size_t place = 0;
    for (StepInFlight& step : flights_) {
      step.input = input_for(step, place++);
      begin(step.batch.micro_batches, step.input);
    }
  }

  // Forward, backward and gradient sums without an update: gradients of the mean loss stay in the
  // store.
  StepResult gradients(std::span<const MicroBatch> batches, const StepInput& input);
  // Mean loss without gradients, dropout off.
  StepResult evaluate(std::span<const MicroBatch> batches);

  // Runs the step again with every result checked, without an update; what it says of the first bad
  // tensor anywhere ("" when all are finite). Every rank gets the same text.
  std::string find_nonfinite(std::span<const MicroBatch> batches, const StepInput& input);

  // The model's weights were written by others: main weights follow them.
  void weights_written();

  // Host memory of activations; null where none are offloaded.
  const Arena* offloaded() const;
  // Shapes of steps that were captured as CUDA graphs.
  std::size_t captured_steps() const { return graphs_.size(); }
  // Updates so far, for bias correction.
  std::int64_t updates() const { return updates_; }
  // Seed of the random numbers of steps.
  std::uint64_t seed() const { return seed_; }
  // Goes on from a state that another engine reached: its updates, and the seed of its steps.
  void resume(std::int64_t updates, std::uint64_t seed);
  // Is waited for before every update; null: nobody reads.
  void set_reader(StateReader* reader) { reader_ = reader; }

 private:
  // What the device is asked for and what comes back of a step.
  struct BegunStep {
    std::span<const MicroBatch> batches;  // of the step in flight, or of the caller
    StepInput input;
    bool redone = false;
    std::vector<double> weights;        // of the objective's terms, in the global batch
    std::vector<double> sums;           // a copy of the metrics' block; there after arrival
    std::shared_ptr<const Moment> end;  // of its work, before they arrive
    Work arrival;
    double started = 0;  // of a step launched as graphs: all ranks have started it, after meeting
    Work meeting;
    void clear();
    void wait();
  };

  class Parts;  // of a step, to be captured

  void build(const TrainOptions& options);
  Context& ctx() { return model_.ctx(); }
  const Mesh& mesh() const { return model_.mesh(); }
  ParamStore& store() { return model_.store(); }
  const ModelOptions& options() const { return model_.options(); }
  // Fills in the weights of the objective's terms in the global batch.
  void count_weights(std::span<const MicroBatch> batches, BegunStep& step);
  // The same, and sends what kernels read of the step.
  void send_inputs(std::span<const MicroBatch> batches, const StepInput& input, BegunStep& step);
  void begin(std::span<const MicroBatch> batches, const StepInput& input);
  StepResult finish();
  // The parts of a step.
  void run_micro_batches(std::span<const MicroBatch> batches);
  void finish_sums();
  void update(double clip_grad);

  void forward_backward(std::span<const MicroBatch> batches);
  // Whether steps can be captured at all. Collective; the first rank says why not.
  bool decide_capturing();
  std::string uncaptured_because() const;
  // Whether this rank may capture now: with exact sizes of what experts exchange the host waits for
  // them.
  bool can_capture() const;
  // The steps begun, the first of which lost rows, once more.
  void redo_steps();
  void forget_failure();
  void launch(StepGraph& graph, std::span<const MicroBatch> batches, BegunStep& step);
  StepResult result_of(const BegunStep& step, bool with_gradient);
  void fetch_results(BegunStep& step);
  const Schedule& training_schedule(std::size_t micro_batches);
  std::string gather_findings(const FiniteProbe& probe, bool in_step);

  std::unique_ptr<Rank> own_rank_;        // of the usual case
  std::unique_ptr<RankModel> own_model_;  // likewise
  RankModel& model_;
  TrainOptions train_;
  std::unique_ptr<Objective> own_objective_;
  const Objective* objective_;
  std::uint64_t seed_;
  std::unique_ptr<StepMetrics> metrics_;
  bool fixed_exchange_ = false;  // of tokens for experts, in training steps
  std::int64_t updates_ = 0;
  StateReader* reader_ = nullptr;
  std::unique_ptr<Optimizer> optimizer_;
  std::map<std::size_t, Schedule> schedules_;  // by micro-batches
  std::list<StepInFlight> flights_;
  std::list<BegunStep> begun_;  // in order; what arrives is written to them where they are
  std::list<BegunStep> ended_;  // whose memory the next ones take
  bool captures_ = false;
  StepGraphs graphs_;
};

}  // namespace bev
