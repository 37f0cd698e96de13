// Runs a schedule's actions on this rank's stages of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "autograd/offload.h"
#include "autograd/tape.h"
#include "models/model.h"
#include "parallel/objective.h"
#include "parallel/schedule.h"

namespace bev {

// Takes the last stage's outputs instead of the loss.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void on_outputs(std::int64_t micro_batch, std::span<const Var> outputs) = 0;
};

struct ExecutorOptions {
  // Messages travel while the rank computes: those that the next computation needs are received
  // during the one before, and a send is finished after the computation that follows it.
  bool overlap = false;
  bool delay_wgrad = false;  // until the backward yields to its partner (autograd/partner.h)
  OffloadPolicy offload;     // which activations wait for their backward on the host
  // For every stage of the pipeline, whether a parameter of an earlier stage trains. Where none
  // does, the backward ends: no gradient is computed for, or sent to, the stage before.
  std::vector<bool> upstream_trains;
};

class Executor {
 public:
  // `chunks` are this rank's stages. Where `shape` has pairs, each runs as two that take turns.
  Executor(Context& ctx, const PipelineShape& shape, std::vector<const ModelStage*> chunks,
           ExecutorOptions options);

  // On the ranks of the last stage `objective` computes the loss of each micro-batch, in their
  // order, and adds its terms to `sums` (f64, on the device; an objective's terms). Gradients go to
  // the context's sinks when the schedule has backwards.
  void run(const Schedule& schedule, std::span<const MicroBatch> batches, bool record,
           const Objective& objective, double* sums);
  // Forwards whose final outputs go to `sink`, on the ranks that have them.
  void run_outputs(const Schedule& schedule, std::span<const MicroBatch> batches, OutputSink& sink);

  // Null where nothing is offloaded.
  const Offloader* offloader() const { return offloader_.get(); }

 private:
  // Tensors of a boundary between stages, or their gradients, in its order.
  struct Incoming {
    std::vector<Tensor> tensors;
    std::vector<Work> works;
    bool posted = false;
  };
  // A micro-batch on a stage, from what its first action needs to the end of its last.
  struct InFlight {
    explicit InFlight(Offloader* to) : offload(to) {}
    OffloadPass offload;
    Tape tape;
    std::vector<Var> inputs, outputs;
    std::vector<GradSlot> input_slots, output_slots;  // of the last stage: its loss
    WeightWork weight_work;
    Incoming activations, gradients;  // of the inputs, of the outputs
    std::vector<Tensor> outgoing;     // what to send next
  };
  struct Sending {
    Tensor tensor;
    Work work;
  };
  // A micro-batch of a chunk in the schedule that runs.
  struct Place {
    std::unique_ptr<InFlight> flight;
    std::int64_t actions_left = 0;
  };
  struct Run {
    std::span<const MicroBatch> batches;
    bool record = false;
    OutputSink* sink = nullptr;
    const Objective* objective = nullptr;
    double* sums = nullptr;
    std::vector<Sending> sending;
  };

  void play(const Schedule& schedule, Run& run);
  void act(const Action& action, Run& run);
  class BackwardBeside;
  void act_together(const Action& forward, const Action& backward, Run& run);
  // How many of the actions from `at` on are done at a time.
  std::size_t together(const Schedule& schedule, std::size_t at) const;
  void forward(const Action& action, Run& run);
  // What becomes of the last stage's outputs.
  void finish_forward(const Action& action, InFlight& at, Run& run);
  void backward(const Action& action, Run& run);
  // Its parts: the second is repeated until it returns true.
  void begin_backward(const Action& action, Run& run);
  bool continue_backward(const Action& action, Run& run);
  void end_backward(const Action& action, Run& run);
  Incoming& post_receive(const Action& action, Run& run);
  void send(const Action& action, Run& run);
  static void finish_sends(Run& run);
  // Whether stages before this one train, so that its inputs have gradients.
  bool upstream_trains(std::int64_t stage) const {
    return options_.upstream_trains[static_cast<std::size_t>(stage)];
  }
  // The boundary tensors that an action sends or receives.
  Boundary boundary(const Action& action, const Run& run) const;
  void post_next_receives(const Schedule& schedule, std::size_t at, Run& run);
  void prefetch_next(const Schedule& schedule, std::size_t at, const Run& run);

  const ModelStage& model(const Action& action) const {
    return *chunks_[static_cast<std::size_t>(action.chunk)];
  }
  std::int64_t stage_of(const Action& action) const;
  Place& place(const Run& run, std::int64_t chunk, std::int64_t micro_batch);
  InFlight& flight(const Run& run, std::int64_t chunk, std::int64_t micro_batch);
  // The flight of the same micro-batch on another stage, where this rank has it; else nullptr.
  InFlight* neighbour(const Action& action, std::int64_t stage, const Run& run);

  Context& ctx_;
  PipelineShape shape_;
  std::vector<const ModelStage*> chunks_;
  ExecutorOptions options_;
  std::unique_ptr<Offloader> offloader_;
  std::vector<Place> places_;                     // by chunk and micro-batch
  std::vector<std::unique_ptr<InFlight>> spare_;  // their tapes' memory is used again
};

}  // namespace bev
