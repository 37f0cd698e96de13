#include "parallel/executor.h"

#include "autograd/recompute.h"

namespace bev {

Executor::InFlight& Executor::in_flight(std::int64_t micro_batch) {
  while (flights_.size() <= static_cast<std::size_t>(micro_batch)) {
    flights_.push_back(std::make_unique<InFlight>());
  }
  return *flights_[static_cast<std::size_t>(micro_batch)];
}

void Executor::forward(InFlight& flight, const MicroBatch& batch, Tensor* token_loss, bool record) {
  flight.tape.clear();
  TapeScope scope(ctx_, record ? &flight.tape : nullptr);
  Var input;
  if (!model_.range().first) {
    Placement placement = model_.boundary_placement();
    input = Var{std::move(flight.received), placement, -1, nullptr};
    if (record) input = flight.tape.track(std::move(input.tensor), placement);
  }
  flight.input = GradSlot(input);
  Var hidden = model_.hidden(ctx_, batch, input);
  input.tensor = Tensor();
  if (model_.range().last) {
    LossResult loss = model_.loss(ctx_, batch, hidden);
    *token_loss = loss.token_loss;
    flight.output = GradSlot(loss.loss);
  } else {
    flight.output = GradSlot(hidden);
    flight.outgoing = std::move(hidden.tensor);
  }
}

void Executor::backward(InFlight& flight) {
  Tensor seed = std::move(flight.received);
  if (model_.range().last) {
    seed = ctx_.allocate(ctx_.wide(), {1}, "gradients");
    ctx_.kernels.elementwise.fill(ctx_.stream, seed, 1);
  }
  flight.tape.add_gradient(ctx_, flight.output, std::move(seed), flight.output.placement.dual());
  flight.tape.backward(ctx_);
  flight.outgoing = flight.tape.take_gradient(flight.input.id);
  flight.tape.clear();
}

std::vector<Tensor> Executor::run(const Schedule& schedule, std::span<const MicroBatch> batches,
                                  bool record) {
  Group& pp = ctx_.mesh.pp();
  std::vector<Tensor> token_losses(batches.size());
  for (const Action& action : schedule) {
    auto index = static_cast<std::size_t>(action.micro_batch);
    const MicroBatch& batch = batches[index];
    InFlight& flight = in_flight(action.micro_batch);
    switch (action.kind) {
      case ActionKind::kReceiveForward:
        flight.received =
            ctx_.allocate(ctx_.dtype, model_.boundary_shape(ctx_, batch), "activations");
        pp.receive(flight.received, pp.rank() - 1, "hidden states").wait();
        break;
      case ActionKind::kForward:
        forward(flight, batch, &token_losses[index], record);
        break;
      case ActionKind::kSendForward:
        pp.send(flight.outgoing, pp.rank() + 1, "hidden states").wait();
        flight.outgoing = Tensor();
        break;
      case ActionKind::kReceiveBackward:
        flight.received =
            ctx_.allocate(ctx_.dtype, model_.boundary_shape(ctx_, batch), "gradients");
        pp.receive(flight.received, pp.rank() + 1, "gradient of hidden states").wait();
        break;
      case ActionKind::kBackward:
        backward(flight);
        break;
      case ActionKind::kSendBackward:
        pp.send(flight.outgoing, pp.rank() - 1, "gradient of hidden states").wait();
        flight.outgoing = Tensor();
        break;
    }
  }
  return token_losses;
}

}  // namespace bev
