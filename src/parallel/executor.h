// Runs a schedule's actions on this rank's stages of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "autograd/offload.h"
#include "autograd/tape.h"
#include "models/decoder.h"
#include "parallel/schedule.h"

namespace bev {

// Takes the last stage's hidden states instead of the loss.
class HiddenSink {
 public:
  virtual ~HiddenSink() = default;
  virtual void on_hidden(std::int64_t micro_batch, const Var& hidden) = 0;
};

class Executor {
 public:
  // `chunks` are this rank's stages. With `overlap` messages travel while the rank computes: those
  // that the next computation needs are received during the one before, and a send is finished
  // after the computation that follows it. `offload` says what waits for its backward on the host.
  // With `delay` weight gradients are computed where a backward gives way (autograd/partner.h).
  // Where `shape` has pairs, each runs as two that take turns.
  Executor(Context& ctx, const PipelineShape& shape, std::vector<const Decoder*> chunks,
           bool overlap, bool delay, OffloadPolicy offload);

  // The rank of the last stage adds the losses of the micro-batches, in their order, to losses[0],
  // those of depth d of multi-token prediction to losses[d] (f64, on the device; the tp ranks of
  // the stage have the same losses, and the first adds them).
  // Gradients go to the context's sinks when the schedule has backwards.
  void run(const Schedule& schedule, std::span<const MicroBatch> batches, bool record,
           double* losses);
  // Forwards whose hidden states after the last layer go to `sink`, on the rank that has them.
  void run_hidden(const Schedule& schedule, std::span<const MicroBatch> batches, HiddenSink& sink);

  // Null where nothing is offloaded.
  const Offloader* offloader() const { return offloader_.get(); }

 private:
  struct Incoming {
    Tensor tensor;
    Work work;
    bool posted = false;
  };
  // A micro-batch on a stage, from what its first action needs to the end of its last.
  struct InFlight {
    explicit InFlight(Offloader* to) : offload(to) {}
    OffloadPass offload;
    Tape tape;
    GradSlot input, output;
    WeightWork weight_work;
    Incoming activations, gradient;  // of the input, of the output
    Tensor outgoing;                 // what to send next
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
    HiddenSink* sink = nullptr;
    double* losses = nullptr;
    std::vector<Sending> sending;
  };

  void play(const Schedule& schedule, Run& run);
  void act(const Action& action, Run& run);
  class BackwardBeside;
  void act_together(const Action& forward, const Action& backward, Run& run);
  // How many of the actions from `at` on are done at a time.
  std::size_t together(const Schedule& schedule, std::size_t at) const;
  void forward(const Action& action, Run& run);
  void backward(const Action& action, Run& run);
  // Its parts: the second is repeated until it returns true.
  void begin_backward(const Action& action, Run& run);
  bool continue_backward(const Action& action, Run& run);
  void end_backward(const Action& action, Run& run);
  Incoming& post_receive(const Action& action, Run& run);
  void send(const Action& action, Run& run);
  static void finish_sends(Run& run);
  void post_next_receives(const Schedule& schedule, std::size_t at, Run& run);
  void prefetch_next(const Schedule& schedule, std::size_t at, const Run& run);

  const Decoder& model(const Action& action) const {
    return *chunks_[static_cast<std::size_t>(action.chunk)];
  }
  std::int64_t stage_of(const Action& action) const;
  Place& place(const Run& run, std::int64_t chunk, std::int64_t micro_batch);
  InFlight& flight(const Run& run, std::int64_t chunk, std::int64_t micro_batch);
  // The flight of the same micro-batch on another stage, where this rank has it; else nullptr.
  InFlight* neighbour(const Action& action, std::int64_t stage, const Run& run);

  Context& ctx_;
  PipelineShape shape_;
  std::vector<const Decoder*> chunks_;
  bool overlap_, delay_;
  std::unique_ptr<Offloader> offloader_;
  std::vector<Place> places_;                     // by chunk and micro-batch
  std::vector<std::unique_ptr<InFlight>> spare_;  // their tapes' memory is used again
};

}  // namespace bev
