#include "parallel/executor.h"

#include <map>

#include "autograd/recompute.h"

namespace bev {

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

void Executor::act(const Action& action, const MicroBatch& batch, InFlight& flight,
                   Tensor* token_loss, bool record) {
  Group& pp = ctx_.mesh.pp();
  ctx_.mesh.activity().set_action(name_of(action.kind), action.micro_batch);
  auto receive = [&](int from, const char* tag, const char* label) {
    flight.received = ctx_.allocate(ctx_.dtype, model_.boundary_shape(ctx_, batch), tag);
    pp.receive(flight.received, from, 0, label).wait();
  };
  auto send = [&](int to, const char* label) {
    pp.send(flight.outgoing, to, 0, label).wait();
    flight.outgoing = Tensor();
  };
  switch (action.kind) {
    case ActionKind::kReceiveForward:
      return receive(pp.rank() - 1, "activations", "hidden states");
    case ActionKind::kForward:
      return forward(flight, batch, token_loss, record);
    case ActionKind::kSendForward:
      return send(pp.rank() + 1, "hidden states");
    case ActionKind::kReceiveBackward:
      return receive(pp.rank() + 1, "gradients", "gradient of hidden states");
    case ActionKind::kBackward:
      return backward(flight);
    case ActionKind::kSendBackward:
      return send(pp.rank() - 1, "gradient of hidden states");
  }
}

std::vector<Tensor> Executor::run(const Schedule& schedule, std::span<const MicroBatch> batches,
                                  bool record) {
  std::vector<Tensor> token_losses(batches.size());
  std::map<std::int64_t, std::unique_ptr<InFlight>> flights;
  for (const Action& action : schedule) {
    auto index = static_cast<std::size_t>(action.micro_batch);
    std::unique_ptr<InFlight>& flight = flights[action.micro_batch];
    if (!flight && !spare_.empty()) {
      flight = std::move(spare_.back());
      spare_.pop_back();
    } else if (!flight) {
      flight = std::make_unique<InFlight>();
    }
    act(action, batches[index], *flight, &token_losses[index], record);
    if (!flight->idle()) continue;
    spare_.push_back(std::move(flight));
    flights.erase(action.micro_batch);
  }
  return token_losses;
}

}  // namespace bev
