#include "parallel/executor.h"

#include <utility>

#include "autograd/partner.h"
#include "autograd/recompute.h"
#include "base/scoped_value.h"
#include "base/trace.h"
#include "kernels/loss.h"

namespace bev {

namespace {

// One channel for each boundary between stages and direction, so that stages of one rank do not mix
// their messages. A boundary has the number of the stage before it.
int forward_channel(std::int64_t boundary) { return static_cast<int>(2 * boundary); }
int backward_channel(std::int64_t boundary) { return static_cast<int>(2 * boundary + 1); }

constexpr const char* kHidden = "hidden states";
constexpr const char* kGradient = "gradient of hidden states";

}  // namespace

Executor::Executor(Context& ctx, const PipelineShape& shape, std::vector<const Decoder*> chunks,
                   bool overlap, bool delay, OffloadPolicy offload)
    : ctx_(ctx), shape_(shape), chunks_(std::move(chunks)), overlap_(overlap), delay_(delay) {
  if (!offload.any()) return;
  offloader_ = std::make_unique<Offloader>(ctx.kernels, ctx.stream, ctx.arena, std::move(offload));
}

std::int64_t Executor::stage_of(const Action& action) const {
  return shape_.stage_at(ctx_.mesh.at().pp, action.chunk);
}

Executor::Place& Executor::place(const Run& run, std::int64_t chunk, std::int64_t micro_batch) {
  return places_[static_cast<std::size_t>(chunk) * run.batches.size() +
                 static_cast<std::size_t>(micro_batch)];
}

Executor::InFlight& Executor::flight(const Run& run, std::int64_t chunk, std::int64_t micro_batch) {
  std::unique_ptr<InFlight>& at = place(run, chunk, micro_batch).flight;
  if (!at && !spare_.empty()) {
    at = std::move(spare_.back());
    spare_.pop_back();
  } else if (!at) {
    at = std::make_unique<InFlight>(offloader_.get());
  }
  return *at;
}

Executor::InFlight* Executor::neighbour(const Action& action, std::int64_t stage, const Run& run) {
  if (stage < 0 || stage >= shape_.stages()) return nullptr;
  StagePlace holder = shape_.place_of(stage);
  if (holder.rank != ctx_.mesh.at().pp) return nullptr;
  return &flight(run, holder.chunk, action.micro_batch);
}

void Executor::forward(const Action& action, Run& run) {
  const Decoder& stage = model(action);
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  const MicroBatch& batch = run.batches[static_cast<std::size_t>(action.micro_batch)];
  at.tape.clear();
  at.offload.clear();
  TapeScope scope(ctx_, run.record ? &at.tape : nullptr);
  ScopedValue offload(ctx_.offload, offloader_ ? &at.offload : nullptr);
  Var input;
  if (!stage.range().first) {
    Placement placement = stage.boundary_placement();
    input = Var{std::move(at.activations.tensor), placement, -1, nullptr};
    if (run.record) input = at.tape.track(std::move(input.tensor), placement);
  }
  at.input = GradSlot(input);
  Var hidden = stage.hidden(ctx_, batch, input);
  input.tensor = Tensor();
  if (!stage.range().last) {
    at.output = GradSlot(hidden);
    at.outgoing = std::move(hidden.tensor);
    InFlight* next = neighbour(action, stage_of(action) + 1, run);
    if (next != nullptr) next->activations.tensor = std::move(at.outgoing);
  } else if (run.sink != nullptr) {
    run.sink->on_hidden(action.micro_batch, hidden);
  } else {
    DecoderLoss loss = stage.loss(ctx_, batch, hidden);
    at.output = GradSlot(loss.loss);
    if (ctx_.mesh.tp().rank() != 0) return;
    double* to = run.losses;
    ctx_.kernels.loss.total(ctx_.stream, {loss.token_loss, batch.targets.weights.as<float>(), to});
    for (std::size_t depth = 0; depth < loss.future_losses.size(); ++depth) {
      const Tensor& weights = batch.future[depth].targets.weights;
      ctx_.kernels.loss.total(ctx_.stream, {loss.future_losses[depth], weights.as<float>(), ++to});
    }
  }
}

void Executor::begin_backward(const Action& action, Run& run) {
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  Tensor seed = std::move(at.gradient.tensor);
  if (model(action).range().last) {
    seed = ctx_.allocate(ctx_.wide(), {1}, "gradients");
    ctx_.kernels.fill(ctx_.stream, seed, 1);
  }
  at.tape.add_gradient(ctx_, at.output, std::move(seed), at.output.placement.dual());
}

bool Executor::continue_backward(const Action& action, Run& run) {
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  bool later = action.kind == ActionKind::kBackwardInput, done = false;
  {
    ScopedValue collect(ctx_.weight_work, later || delay_ ? &at.weight_work : nullptr);
    done = at.tape.backward_to_pause(ctx_);
  }
  if (!later) at.weight_work.run(ctx_);
  return done;
}

void Executor::end_backward(const Action& action, Run& run) {
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  at.outgoing = at.tape.take_gradient(at.input.id);
  at.tape.clear();
  InFlight* before = neighbour(action, stage_of(action) - 1, run);
  if (before != nullptr) before->gradient.tensor = std::move(at.outgoing);
}

void Executor::backward(const Action& action, Run& run) {
  begin_backward(action, run);
  while (!continue_backward(action, run)) {
  }
  end_backward(action, run);
}

// The backward of a pair, as its forward sees it.
class Executor::BackwardBeside final : public Partner {
 public:
  BackwardBeside(Executor& executor, const Action& backward, const Action& forward, Run& run)
      : executor_(executor), backward_(backward), forward_(forward), run_(run) {}

  bool done() const { return done_; }
  void go_on() override {
    if (done_) return;
    Context& ctx = executor_.ctx_;
    // What the forward has set is not the backward's.
    TapeScope tape(ctx, nullptr);
    ScopedValue<Partner*> partner(ctx.partner, nullptr);
    ScopedValue<OffloadPass*> offload(ctx.offload, nullptr);
    ctx.mesh.activity().set_action(name_of(backward_.kind), backward_.micro_batch);
    {
      TraceScope span(ctx.trace,
                      {TraceKind::kAction, name_of(backward_.kind), backward_.micro_batch});
      done_ = executor_.continue_backward(backward_, run_);
    }
    ctx.mesh.activity().set_action(name_of(forward_.kind), forward_.micro_batch);
  }

 private:
  Executor& executor_;
  const Action &backward_, &forward_;
  Run& run_;
  bool done_ = false;
};

void Executor::act_together(const Action& forward, const Action& backward, Run& run) {
  BackwardBeside beside(*this, backward, forward, run);
  begin_backward(backward, run);
  {
    ScopedValue<Partner*> partner(ctx_.partner, &beside);
    act(forward, run);
  }
  while (!beside.done()) beside.go_on();
  end_backward(backward, run);
}

Executor::Incoming& Executor::post_receive(const Action& action, Run& run) {
  bool forward = action.kind == ActionKind::kReceiveForward;
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  Incoming& incoming = forward ? at.activations : at.gradient;
  if (std::exchange(incoming.posted, true)) return incoming;
  const MicroBatch& batch = run.batches[static_cast<std::size_t>(action.micro_batch)];
  std::int64_t stage = stage_of(action);
  std::int64_t from = shape_.place_of(forward ? stage - 1 : stage + 1).rank;
  const StageRange& range = model(action).range();
  std::int64_t depths = !run.record ? 0 : forward ? range.first_depth : range.end_depth;
  incoming.tensor = ctx_.allocate(ctx_.dtype, model(action).boundary_shape(ctx_, batch, depths),
                                  forward ? "activations" : "gradients");
  incoming.work =
      ctx_.mesh.pp().receive(incoming.tensor, static_cast<int>(from),
                             forward ? forward_channel(stage - 1) : backward_channel(stage),
                             forward ? kHidden : kGradient);
  return incoming;
}

void Executor::send(const Action& action, Run& run) {
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  bool forward = action.kind == ActionKind::kSendForward;
  std::int64_t stage = stage_of(action);
  std::int64_t to = shape_.place_of(forward ? stage + 1 : stage - 1).rank;
  Work work = ctx_.mesh.pp().send(at.outgoing, static_cast<int>(to),
                                  forward ? forward_channel(stage) : backward_channel(stage - 1),
                                  forward ? kHidden : kGradient);
  run.sending.push_back({std::move(at.outgoing), std::move(work)});
  if (!overlap_) finish_sends(run);
}

void Executor::finish_sends(Run& run) {
  for (Sending& sending : run.sending) sending.work.wait();
  run.sending.clear();
}

void Executor::act(const Action& action, Run& run) {
  ctx_.mesh.activity().set_action(name_of(action.kind), action.micro_batch);
  TraceScope span(ctx_.trace, {TraceKind::kAction, name_of(action.kind), action.micro_batch});
  if (ctx_.probe != nullptr) ctx_.probe->stage = stage_of(action);
  switch (action.kind) {
    case ActionKind::kReceiveForward:
    case ActionKind::kReceiveBackward: {
      Incoming& incoming = post_receive(action, run);
      incoming.work.wait();
      incoming.posted = false;
      return;
    }
    case ActionKind::kSendForward:
    case ActionKind::kSendBackward:
      return send(action, run);
    case ActionKind::kForward:
      return forward(action, run);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return backward(action, run);
    case ActionKind::kBackwardWeight:
      return flight(run, action.chunk, action.micro_batch).weight_work.run(ctx_);
  }
}

// Those between the computation at `at` and the next one.
void Executor::post_next_receives(const Schedule& schedule, std::size_t at, Run& run) {
  for (std::size_t i = at + 1; i < schedule.size() && !computes(schedule[i].kind); ++i) {
    bool receives = schedule[i].kind == ActionKind::kReceiveForward ||
                    schedule[i].kind == ActionKind::kReceiveBackward;
    if (receives) post_receive(schedule[i], run);
  }
}

// What the next computation reads first, where that is a backward or has one beside it.
void Executor::prefetch_next(const Schedule& schedule, std::size_t at, const Run& run) {
  for (std::size_t i = at + 1; i < schedule.size(); ++i) {
    const Action& action = schedule[i];
    if (!computes(action.kind) || together(schedule, i) > 1) continue;
    bool backward =
        action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardInput;
    if (backward) flight(run, action.chunk, action.micro_batch).offload.prefetch();
    return;
  }
}

// Whoever looks for a bad number wants one thing after the other.
std::size_t Executor::together(const Schedule& schedule, std::size_t at) const {
  return shape_.paired && ctx_.probe == nullptr && runs_together(schedule, at) ? 2 : 1;
}

void Executor::play(const Schedule& schedule, Run& run) {
  places_.clear();
  places_.resize(chunks_.size() * run.batches.size());
  for (const Action& action : schedule) {
    ++place(run, action.chunk, action.micro_batch).actions_left;
  }
  for (std::size_t begin = 0, end = 0; begin < schedule.size(); begin = end) {
    const Action& action = schedule[begin];
    end = begin + together(schedule, begin);
    if (overlap_ && computes(action.kind)) post_next_receives(schedule, end - 1, run);
    if (offloader_ && computes(action.kind)) prefetch_next(schedule, end - 1, run);
    if (end - begin == 1) {
      act(action, run);
    } else {
      act_together(action, schedule[end - 1], run);
    }
    if (computes(action.kind)) finish_sends(run);
    for (std::size_t i = begin; i < end; ++i) {
      Place& done = place(run, schedule[i].chunk, schedule[i].micro_batch);
      if (--done.actions_left == 0) spare_.push_back(std::move(done.flight));
    }
  }
  finish_sends(run);
}

void Executor::run(const Schedule& schedule, std::span<const MicroBatch> batches, bool record,
                   double* losses) {
  Run run{batches, record, nullptr, losses, {}};
  play(schedule, run);
}

void Executor::run_hidden(const Schedule& schedule, std::span<const MicroBatch> batches,
                          HiddenSink& sink) {
  Run run{batches, false, &sink, nullptr, {}};
  play(schedule, run);
}

}  // namespace bev
