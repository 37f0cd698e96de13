// Pipeline executor: runs the actions of a schedule (1F1B, interleaved, zero bubble) on this rank's
// model stages.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "autograd/offload.h"
#include "autograd/tape.h"
#include "models/model.h"
#include "parallel/objective.h"
#include "parallel/pipeline/schedule.h"

namespace bev {

// Receives the outputs of the last stage instead of the loss.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void on_outputs(std::int64_t micro_batch, std::span<const Var> outputs) = 0;
};

struct ExecutorOptions {
  // Overlaps p2p messages with compute: the messages of the next action are received during the
  // current one, and a send is completed after the compute that follows it.
  bool overlap = false;
  bool delay_wgrad =
      false;  // until the backward yields to its partner (autograd/interleaved_backward.h)
  OffloadPolicy offload;  // which activations are offloaded to the host until their backward
  // For each pipeline stage: whether a parameter of an earlier stage trains. If none does, the
  // backward ends there: no input gradient (dgrad) is computed or sent to the previous stage.
  std::vector<bool> upstream_trains;
};

class Executor {
 public:
  // `chunks` are this rank's stages. If `shape` is paired, each forward/backward pair runs
  // interleaved.
  Executor(Context& ctx, const PipelineShape& shape, std::vector<const ModelStage*> chunks,
           ExecutorOptions options);

  // On the ranks of the last stage `objective` computes the loss of each micro-batch, in order, and
  // adds its terms to `sums` (f64, on the device). If the schedule has backwards, gradients go to
  // the sinks of the context.
  void run(const Schedule& schedule, std::span<const MicroBatch> batches, bool record,
           const Objective& objective, double* sums);
  // Runs forwards only and passes the final outputs to `sink` on the ranks of the last stage.
  void run_outputs(const Schedule& schedule, std::span<const MicroBatch> batches, OutputSink& sink);

  // Null if nothing is offloaded.
  const Offloader* offloader() const { return offloader_.get(); }

 private:
  // The tensors received at a stage boundary, or their gradients, in the order of the boundary.
  struct Incoming {
    std::vector<Tensor> tensors;
    std::vector<Work> works;
    bool posted = false;
  };
  // A micro-batch on a stage, from its first action to its last.
  struct InFlight {
    explicit InFlight(Offloader* to) : offload(to) {}
    OffloadPass offload;
    Tape tape;
    std::vector<Var> inputs, outputs;
    std::vector<GradSlot> input_slots, output_slots;  // output_slots of the last stage: its loss
    DeferredWgrad deferred_wgrad;
    Incoming activations, gradients;  // of the inputs; of the outputs
    std::vector<Tensor> outgoing;     // the tensors to send next
  };
  struct Sending {
    Tensor tensor;
    Work work;
  };
  // A micro-batch of a chunk in the current schedule.
  struct MicroBatchSlot {
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
  class SteppedBackward;
  void act_together(const Action& forward, const Action& backward, Run& run);
  // Number of actions from `at` on that run together: 1 or 2.
  std::size_t together(const Schedule& schedule, std::size_t at) const;
  void forward(const Action& action, Run& run);
  // Passes the outputs of the last stage to the objective or to the sink.
  void finish_forward(const Action& action, InFlight& at, Run& run);
  void backward(const Action& action, Run& run);
  // The backward in three parts; continue_backward() is repeated until it returns true.
  void begin_backward(const Action& action, Run& run);
  bool continue_backward(const Action& action, Run& run);
  void end_backward(const Action& action, Run& run);
  Incoming& post_receive(const Action& action, Run& run);
  void send(const Action& action, Run& run);
  static void finish_sends(Run& run);
  // Whether an earlier stage trains, so that the inputs of this stage need gradients.
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
  MicroBatchSlot& place(const Run& run, std::int64_t chunk, std::int64_t micro_batch);
  InFlight& flight(const Run& run, std::int64_t chunk, std::int64_t micro_batch);
  // The same micro-batch on another stage; null if this rank does not have the stage.
  InFlight* neighbour(const Action& action, std::int64_t stage, const Run& run);

  Context& ctx_;
  PipelineShape shape_;
  std::vector<const ModelStage*> chunks_;
  ExecutorOptions options_;
  std::unique_ptr<Offloader> offloader_;
  std::vector<MicroBatchSlot> places_;            // by chunk and micro-batch
  std::vector<std::unique_ptr<InFlight>> spare_;  // reused, so that their tapes keep their memory
};

}  // namespace bev
