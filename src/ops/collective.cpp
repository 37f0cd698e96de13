#include "ops/collective.h"

#include "autograd/op_scope.h"
#include "base/error.h"

namespace bev {

namespace {

// Returns x, or a copy if others hold it, so that it may be reduced in place.
Tensor writable(Context& ctx, Tensor x) {
  if (x.unique()) return x;
  Tensor copy = ctx.allocate(x.dtype(), x.shape(), "activations");
  ctx.kernels.cast(ctx.stream, x, copy);
  return copy;
}

Tensor all_reduce(Context& ctx, Tensor x, const char* label) {
  Group& tp = ctx.mesh.tp();
  if (tp.size() == 1) return x;
  Tensor sum = writable(ctx, std::move(x));
  tp.all_reduce(sum, Reduction::kSum, label).wait();
  return sum;
}

Tensor gathered(Context& ctx, const Tensor& part, std::int64_t tokens, const char* label) {
  Group& tp = ctx.mesh.tp();
  Shape shape = part.shape();
  shape[0] = tokens;
  if (tp.size() == 1) return part;
  Tensor whole = ctx.allocate(part.dtype(), shape, "activations");
  tp.all_gather(part, whole, label).wait();
  return whole;
}

Tensor scatter_tokens(Context& ctx, const Tensor& whole, const char* label) {
  Group& tp = ctx.mesh.tp();
  if (tp.size() == 1) return whole;
  Shape shape = whole.shape();
  shape[0] = shard_range(shape[0], tp.size(), tp.rank()).size();
  Tensor part = ctx.allocate(whole.dtype(), shape, "activations");
  tp.reduce_scatter(whole, part, label).wait();
  return part;
}

}  // namespace

Var enter_tensor_parallel(Context& ctx, const Var& x, std::int64_t tokens) {
  OpScope scope(ctx, "enter_tensor_parallel");
  PlaceState state = x.placement[Axis::kTp];
  BEV_CHECK(state == PlaceState::kReplicated || state == PlaceState::kShard0, ErrorKind::kInternal,
            "enter_tensor_parallel: the input {", x.placement,
            "} must be whole or split over tokens");
  bool split = state == PlaceState::kShard0;
  Placement copied = x.placement.with(Axis::kTp, PlaceState::kCopied);
  Tensor whole = split ? gathered(ctx, x.tensor, tokens, "tp input") : x.tensor;
  Var y = make_output(ctx, "enter_tensor_parallel", std::move(whole), copied, x.tracked());
  if (!y.tracked()) return y;
  if (!split) y.recipe = x.recipe;
  ctx.tape->record("enter_tensor_parallel", ctx.layer,
                   [split, in = GradSlot(x), out = GradSlot(y)](Backward& back) {
                     Tensor dy = back.take(out);
                     if (dy.empty()) return;
                     Tensor dx = split ? scatter_tokens(back.ctx, dy, "tp input gradient")
                                       : all_reduce(back.ctx, std::move(dy), "tp input gradient");
                     back.add(in, std::move(dx));
                   });
  return y;
}

Var gather_tokens(Context& ctx, const Var& x, std::int64_t tokens) {
  OpScope scope(ctx, "gather_tokens");
  PlaceState state = x.placement[Axis::kTp];
  if (state == PlaceState::kReplicated) return x;
  BEV_CHECK(state == PlaceState::kShard0, ErrorKind::kInternal, "gather_tokens: the input {",
            x.placement, "} must be whole or split over tokens");
  Placement placement = x.placement.with(Axis::kTp, PlaceState::kReplicated);
  Tensor whole = gathered(ctx, x.tensor, tokens, "tokens");
  Var y = make_output(ctx, "gather_tokens", std::move(whole), placement, x.tracked());
  if (!y.tracked()) return y;
  ctx.tape->record("gather_tokens", ctx.layer,
                   [in = GradSlot(x), out = GradSlot(y)](Backward& back) {
                     Tensor dy = back.take(out);
                     if (dy.empty()) return;
                     Group& tp = back.ctx.mesh.tp();
                     Range own = shard_range(dy.shape()[0], tp.size(), tp.rank());
                     back.add(in, dy.rows(own.begin, own.end));
                   });
  return y;
}

Var leave_tensor_parallel(Context& ctx, const Var& x, bool sequence_parallel) {
  OpScope scope(ctx, "leave_tensor_parallel");
  BEV_CHECK(x.placement[Axis::kTp] == PlaceState::kPartial, ErrorKind::kInternal,
            "leave_tensor_parallel: the input {", x.placement, "} must be a partial sum over tp");
  std::int64_t tokens = x.shape()[0];
  Placement after = x.placement.with(
      Axis::kTp, sequence_parallel ? PlaceState::kShard0 : PlaceState::kReplicated);
  // The producer of x does not save its result, so reducing in place is safe.
  Tensor sum = x.tensor;
  if (sequence_parallel) {
    sum = scatter_tokens(ctx, x.tensor, "tp output");
  } else if (ctx.mesh.tp().size() > 1) {
    ctx.mesh.tp().all_reduce(sum, Reduction::kSum, "tp output").wait();
  }
  Var y = make_output(ctx, "leave_tensor_parallel", std::move(sum), after, x.tracked());
  if (!y.tracked()) return y;
  ctx.tape->record(
      "leave_tensor_parallel", ctx.layer,
      [sequence_parallel, tokens, in = GradSlot(x), out = GradSlot(y)](Backward& back) {
        Tensor dy = back.take(out);
        if (dy.empty()) return;
        if (sequence_parallel) {
          dy = gathered(back.ctx, dy, tokens, "tp output gradient");
        }
        back.add(in, std::move(dy));
      });
  return y;
}

}  // namespace bev
