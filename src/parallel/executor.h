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
  };
  void forward(InFlight& flight, const MicroBatch& batch, Tensor* token_loss, bool record);
  void backward(InFlight& flight);
  InFlight& in_flight(std::int64_t micro_batch);

  Context& ctx_;
  const Decoder& model_;
  std::vector<std::unique_ptr<InFlight>> flights_;
};

}  // namespace bev
