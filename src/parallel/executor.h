// Runs a schedule's actions on a stage of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "models/decoder.h"
#include "parallel/schedule.h"

namespace bev {

class Executor {
 public:
  Executor(Context& ctx, const Decoder& model) : ctx_(ctx), model_(model) {}

  // Token losses [T] of each micro-batch on the last stage; empty tensors on others. Gradients go
  // to the context's sinks when the schedule has backwards.
  std::vector<Tensor> run(const Schedule& schedule, std::span<const MicroBatch> batches,
                          bool record);

 private:
  // A micro-batch between its forward and its backward.
  struct InFlight {
    Tape tape;
    Tensor received;  // input activations, or the output's gradient
    Tensor outgoing;  // what to send next
    GradSlot input, output;
    bool idle() const { return tape.size() == 0 && received.empty() && outgoing.empty(); }
  };
  void forward(InFlight& flight, const MicroBatch& batch, Tensor* token_loss, bool record);
  void backward(InFlight& flight);
  void act(const Action& action, const MicroBatch& batch, InFlight& flight, Tensor* token_loss,
           bool record);

  Context& ctx_;
  const Decoder& model_;
  std::vector<std::unique_ptr<InFlight>> spare_;  // their tapes' memory is used again
};

}  // namespace bev
