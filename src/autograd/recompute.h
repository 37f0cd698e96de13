// Activation checkpointing (recompute): runs a part of the model without recording, and again with
// recording when its gradient is due. Random numbers are stateless, so both runs are bit-equal.
#pragma once

#include <utility>

#include "autograd/tape.h"
#include "base/scoped_value.h"

namespace bev {

// RAII: records on `tape` (nullptr: nothing).
class TapeScope {
 public:
  TapeScope(Context& ctx, Tape* tape) : ctx_(ctx), previous_(std::exchange(ctx.tape, tape)) {}
  ~TapeScope() { ctx_.tape = previous_; }
  TapeScope(const TapeScope&) = delete;
  TapeScope& operator=(const TapeScope&) = delete;

 private:
  Context& ctx_;
  Tape* previous_;
};

namespace detail {
// Runs f again with recording, then its backward; returns the gradient of x (empty if not wanted).
template <class F>
Tensor backward_again(Backward& back, const F& f, const Saved& x, const GradSlot& slot, Tensor dy,
                      const Placement& dy_placement) {
  Context& ctx = back.ctx;
  Tape& tape = back.inner_tape();
  TapeScope scope(ctx, &tape);
  GradSlot input, output;
  {
    ScopedValue<const MetricBlock*> counted_before(ctx.metrics, nullptr);
    Var again{x.get(ctx), slot.placement, -1, nullptr};
    if (slot.wanted()) again = tape.track(std::move(again.tensor), slot.placement);
    input = GradSlot(again);
    output = GradSlot(f(ctx, again));
  }
  tape.add_gradient(ctx, output, std::move(dy), dy_placement);
  tape.backward(ctx);
  Tensor dx = tape.take_gradient(input.id);
  tape.clear();
  return dx;
}
}  // namespace detail

// f(Context&, const Var&) -> Var. Objects that f refers to must live until the backward. If neither
// x nor a parameter that f uses has a gradient, nothing is recorded.
template <class F>
Var recompute(Context& ctx, const char* name, const Var& x, F f) {
  if (ctx.tape == nullptr) return f(ctx, x);
  Tape& tape = *ctx.tape;
  Var result;
  bool trains = false;  // whether f uses a parameter that does
  {
    TapeScope scope(ctx, nullptr);
    ScopedValue<bool*> watch(ctx.trains, &trains);
    result = f(ctx, Var{x.tensor, x.placement, -1, nullptr});
  }
  Var y = make_output(ctx, name, std::move(result.tensor), result.placement, x.tracked() || trains);
  if (!y.tracked()) return y;
  tape.record(name, ctx.layer,
              [f, saved = Saved(x), slot = GradSlot(x), out = GradSlot(y)](Backward& back) {
                Tensor dy = back.take(out);
                if (dy.empty()) return;
                Tensor dx = detail::backward_again(back, f, saved, slot, std::move(dy),
                                                   out.placement.dual());
                if (slot.wanted()) back.add(slot, std::move(dx));
              });
  return y;
}

}  // namespace bev
