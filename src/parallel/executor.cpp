#include "parallel/executor.h"

#include <utility>

#include "autograd/interleaved_backward.h"
#include "autograd/recompute.h"
#include "base/scoped_value.h"
#include "base/trace.h"
#include "kernels/loss.h"

namespace bev {

namespace {

// One p2p channel per stage boundary and direction, so that messages of several stages of a rank
// are not mixed up. A boundary has the index of the stage before it.
int forward_channel(std::int64_t boundary) { return static_cast<int>(2 * boundary); }
int backward_channel(std::int64_t boundary) { return static_cast<int>(2 * boundary + 1); }

}  // namespace

Executor::Executor(Context& ctx, const PipelineShape& shape, std::vector<const ModelStage*> chunks,
                   ExecutorOptions options)
    : ctx_(ctx), shape_(shape), chunks_(std::move(chunks)), options_(std::move(options)) {
  if (!options_.offload.any()) return;
  offloader_ = std::make_unique<Offloader>(ctx.kernels, ctx.stream, ctx.arena, options_.offload);
}

std::int64_t Executor::stage_of(const Action& action) const {
  return shape_.stage_at(ctx_.mesh.at().pp, action.chunk);
}

Executor::MicroBatchSlot& Executor::place(const Run& run, std::int64_t chunk,
                                          std::int64_t micro_batch) {
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
  const ModelStage& stage = model(action);
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  const MicroBatch& batch = run.batches[static_cast<std::size_t>(action.micro_batch)];
  at.tape.clear();
  at.offload.clear();
  TapeScope scope(ctx_, run.record ? &at.tape : nullptr);
  ScopedValue offload(ctx_.offload, offloader_ ? &at.offload : nullptr);
  at.input_slots.clear();
  if (!stage.range().first) {
    Boundary boundary = stage.boundary_in(ctx_, batch, run.record);
    bool tracked = run.record && upstream_trains(stage_of(action));
    for (std::size_t i = 0; i < boundary.size(); ++i) {
      Tensor tensor = std::move(at.activations.tensors[i]);
      const Placement& placement = boundary[i].placement;
      at.inputs.push_back(tracked ? at.tape.track(std::move(tensor), placement)
                                  : Var{std::move(tensor), placement, -1, nullptr});
      if (tracked) at.input_slots.push_back(GradSlot(at.inputs.back()));
    }
  }
  stage.forward(ctx_, batch, at.inputs, at.outputs);
  at.inputs.clear();
  if (stage.range().last) {
    finish_forward(action, at, run);
  } else {
    at.output_slots.clear();
    at.outgoing.clear();
    for (Var& output : at.outputs) {
      at.output_slots.push_back(GradSlot(output));
      at.outgoing.push_back(std::move(output.tensor));
    }
    InFlight* next = neighbour(action, stage_of(action) + 1, run);
    if (next != nullptr) std::swap(next->activations.tensors, at.outgoing);
  }
  at.outputs.clear();
}

void Executor::finish_forward(const Action& action, InFlight& at, Run& run) {
  if (run.sink != nullptr) return run.sink->on_outputs(action.micro_batch, at.outputs);
  const MicroBatch& batch = run.batches[static_cast<std::size_t>(action.micro_batch)];
  Var loss = run.objective->loss(ctx_, model(action), batch, at.outputs, run.sums);
  at.output_slots.assign(1, GradSlot(loss));
}

void Executor::begin_backward(const Action& action, Run& run) {
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  if (model(action).range().last) {
    Tensor seed = ctx_.allocate(ctx_.wide(), {1}, "gradients");
    ctx_.kernels.fill(ctx_.stream, seed, 1);
    at.gradients.tensors.assign(1, std::move(seed));
  }
  for (std::size_t i = 0; i < at.output_slots.size(); ++i) {
    const GradSlot& slot = at.output_slots[i];
    if (!slot.wanted()) continue;
    at.tape.add_gradient(ctx_, slot, std::move(at.gradients.tensors[i]), slot.placement.dual());
  }
  at.gradients.tensors.clear();
}

bool Executor::continue_backward(const Action& action, Run& run) {
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  bool later = action.kind == ActionKind::kBackwardInput, done = false;
  {
    ScopedValue collect(ctx_.deferred_wgrad,
                        later || options_.delay_wgrad ? &at.deferred_wgrad : nullptr);
    done = at.tape.backward_to_pause(ctx_);
  }
  if (!later) at.deferred_wgrad.run(ctx_);
  return done;
}

void Executor::end_backward(const Action& action, Run& run) {
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  Boundary boundary;
  at.outgoing.clear();
  for (const GradSlot& slot : at.input_slots) {
    Tensor gradient = at.tape.take_gradient(slot.id);
    if (gradient.empty()) {  // no later stage reads the tensor
      const MicroBatch& batch = run.batches[static_cast<std::size_t>(action.micro_batch)];
      if (boundary.empty()) boundary = model(action).boundary_in(ctx_, batch, true);
      const BoundaryTensor& unread = boundary[at.outgoing.size()];
      gradient = ctx_.allocate(unread.dtype, unread.shape, "gradients");
      ctx_.kernels.fill(ctx_.stream, gradient, 0);
    }
    at.outgoing.push_back(std::move(gradient));
  }
  at.tape.clear();
  InFlight* before = neighbour(action, stage_of(action) - 1, run);
  if (before != nullptr) std::swap(before->gradients.tensors, at.outgoing);
}

void Executor::backward(const Action& action, Run& run) {
  begin_backward(action, run);
  while (!continue_backward(action, run)) {
  }
  end_backward(action, run);
}

// The backward of a forward/backward pair, as the partner of its forward.
class Executor::SteppedBackward final : public InterleavedBackward {
 public:
  SteppedBackward(Executor& executor, const Action& backward, const Action& forward, Run& run)
      : executor_(executor), backward_(backward), forward_(forward), run_(run) {}

  bool done() const { return done_; }
  void run_until_yield() override {
    if (done_) return;
    Context& ctx = executor_.ctx_;
    // The backward must not use the tape, partner and offload pass of the forward.
    TapeScope tape(ctx, nullptr);
    ScopedValue<InterleavedBackward*> partner(ctx.partner, nullptr);
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
  SteppedBackward stepped(*this, backward, forward, run);
  begin_backward(backward, run);
  {
    ScopedValue<InterleavedBackward*> partner(ctx_.partner, &stepped);
    act(forward, run);
  }
  while (!stepped.done()) stepped.run_until_yield();
  end_backward(backward, run);
}

// A stage's outputs are the next stage's inputs, so sends and receives of forwards have the same
// boundary; gradients have the same shapes. If the inputs need no gradients, nothing is sent
// backward.
Boundary Executor::boundary(const Action& action, const Run& run) const {
  const MicroBatch& batch = run.batches[static_cast<std::size_t>(action.micro_batch)];
  bool inputs =
      action.kind == ActionKind::kReceiveForward || action.kind == ActionKind::kSendBackward;
  bool backward =
      action.kind == ActionKind::kSendBackward || action.kind == ActionKind::kReceiveBackward;
  if (backward && !upstream_trains(stage_of(action) + (inputs ? 0 : 1))) return {};
  return inputs ? model(action).boundary_in(ctx_, batch, run.record)
                : model(action).boundary_out(ctx_, batch, run.record);
}

Executor::Incoming& Executor::post_receive(const Action& action, Run& run) {
  bool forward = action.kind == ActionKind::kReceiveForward;
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  Incoming& incoming = forward ? at.activations : at.gradients;
  if (std::exchange(incoming.posted, true)) return incoming;
  std::int64_t stage = stage_of(action);
  std::int64_t from = shape_.place_of(forward ? stage - 1 : stage + 1).rank;
  int channel = forward ? forward_channel(stage - 1) : backward_channel(stage);
  incoming.tensors.clear();
  for (const BoundaryTensor& expected : boundary(action, run)) {
    Tensor tensor =
        ctx_.allocate(expected.dtype, expected.shape, forward ? "activations" : "gradients");
    incoming.works.push_back(
        ctx_.mesh.pp().receive(tensor, static_cast<int>(from), channel, expected.id.name));
    incoming.tensors.push_back(std::move(tensor));
  }
  return incoming;
}

void Executor::send(const Action& action, Run& run) {
  InFlight& at = flight(run, action.chunk, action.micro_batch);
  bool forward = action.kind == ActionKind::kSendForward;
  std::int64_t stage = stage_of(action);
  std::int64_t to = shape_.place_of(forward ? stage + 1 : stage - 1).rank;
  int channel = forward ? forward_channel(stage) : backward_channel(stage - 1);
  Boundary expected = boundary(action, run);
  for (std::size_t i = 0; i < at.outgoing.size(); ++i) {
    Tensor& tensor = at.outgoing[i];
    Work work = ctx_.mesh.pp().send(tensor, static_cast<int>(to), channel, expected[i].id.name);
    run.sending.push_back({std::move(tensor), std::move(work)});
  }
  at.outgoing.clear();
  if (!options_.overlap) finish_sends(run);
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
      for (Work& work : incoming.works) work.wait();
      incoming.works.clear();
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
      return flight(run, action.chunk, action.micro_batch).deferred_wgrad.run(ctx_);
  }
}

// Posts the receives between the compute action at `at` and the next one.
void Executor::post_next_receives(const Schedule& schedule, std::size_t at, Run& run) {
  for (std::size_t i = at + 1; i < schedule.size() && !computes(schedule[i].kind); ++i) {
    bool receives = schedule[i].kind == ActionKind::kReceiveForward ||
                    schedule[i].kind == ActionKind::kReceiveBackward;
    if (receives) post_receive(schedule[i], run);
  }
}

// Prefetches offloaded activations if the next compute action, or the partner that runs with it, is
// a backward.
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

// The probe for non-finite values needs actions one by one.
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
    if (options_.overlap && computes(action.kind)) post_next_receives(schedule, end - 1, run);
    if (offloader_ && computes(action.kind)) prefetch_next(schedule, end - 1, run);
    if (end - begin == 1) {
      act(action, run);
    } else {
      act_together(action, schedule[end - 1], run);
    }
    if (computes(action.kind)) finish_sends(run);
    for (std::size_t i = begin; i < end; ++i) {
      MicroBatchSlot& done = place(run, schedule[i].chunk, schedule[i].micro_batch);
      if (--done.actions_left == 0) spare_.push_back(std::move(done.flight));
    }
  }
  finish_sends(run);
}

void Executor::run(const Schedule& schedule, std::span<const MicroBatch> batches, bool record,
                   const Objective& objective, double* sums) {
  Run run{batches, record, nullptr, &objective, sums, {}};
  play(schedule, run);
}

void Executor::run_outputs(const Schedule& schedule, std::span<const MicroBatch> batches,
                           OutputSink& sink) {
  Run run{batches, false, &sink, nullptr, nullptr, {}};
  play(schedule, run);
}

}  // namespace bev
