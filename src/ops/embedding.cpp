#include "ops/embedding.h"

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/embedding.h"

namespace bev {

namespace {
// First global row of this rank's part of the embedding table.
std::int64_t first_row(const Context& ctx, const Param& weight) {
  if (weight.split.dim != 0) return 0;
  return shard_range(weight.shape[0], ctx.mesh.tp().size(), ctx.mesh.tp().rank()).begin;
}

void add_gradient(Context& ctx, const Param& weight, const Placement& placement,
                  EmbeddingBackwardArgs args) {
  GradSink sink = ctx.grads.sink(weight, placement);
  args.dweight = sink.view;
  args.beta = sink.beta;
  ctx.kernels.embedding.backward(ctx.stream, args);
  ctx.grads.done(weight, std::move(sink));
}
}  // namespace

Var embedding(Context& ctx, const Tensor& tokens, const Param& table, const EmbeddingSpec& spec,
              const Placement& placement) {
  OpScope scope(ctx, "embedding");
  const Param& weight = in_use(ctx, table);
  BEV_CHECK(weight.split.dim == 0, ErrorKind::kInternal, "embedding ", weight.name,
            ": the table must be split over the vocabulary");
  Tensor out = ctx.allocate(ctx.dtype, {tokens.numel(), weight.local[1]}, "activations");
  std::int64_t first = first_row(ctx, weight);
  {
    WeightLease w = ctx.weights.use(weight);
    ctx.kernels.embedding.forward(ctx.stream, {.index = tokens.as<std::int32_t>(),
                                               .weight = w.view,
                                               .out = out,
                                               .first_row = first,
                                               .scale = spec.scale});
  }
  Placement partial = placement.with(Axis::kTp, PlaceState::kPartial);
  Var y = make_output(ctx, "embedding", std::move(out), partial, weight.trains);
  if (!y.tracked()) return y;
  ctx.tape->record("embedding", ctx.layer,
                   [w = &weight, tokens, spec, first, grad = gradient_placement(weight, partial),
                    result = GradSlot(y)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     back.deferred_wgrad([w, tokens, spec, first, grad, dy](Context& wctx) {
                       add_gradient(wctx, *w, grad,
                                    {tokens.as<std::int32_t>(),
                                     dy,
                                     {},
                                     first,
                                     spec.scale,
                                     0,
                                     static_cast<std::int32_t>(spec.padding_row)});
                     });
                   });
  return y;
}

Var add_positions(Context& ctx, const Var& x, const SequenceLayout& layout, const Param& table) {
  OpScope scope(ctx, "add_positions");
  const Param& weight = in_use(ctx, table);
  PlaceState state = x.placement[Axis::kTp];
  BEV_CHECK(state == PlaceState::kReplicated || state == PlaceState::kShard0, ErrorKind::kInternal,
            "add_positions: the input {", x.placement, "} must be whole over tp");
  Range rows = token_rows(ctx, layout, x.placement);
  Tensor positions = layout.positions.rows(rows.begin, rows.end);
  {
    WeightLease w = ctx.weights.use(weight);
    ctx.kernels.embedding.forward(ctx.stream, {.index = positions.as<std::int32_t>(),
                                               .weight = w.view,
                                               .out = x.tensor,
                                               .scale = 1.0,
                                               .accumulate = true});
  }
  Var y = make_output(ctx, "add_positions", x.tensor, x.placement, x.tracked() || weight.trains);
  if (!y.tracked()) return y;
  ctx.tape->record(
      "add_positions", ctx.layer,
      [w = &weight, positions, grad = gradient_placement(weight, x.placement), in = GradSlot(x),
       result = GradSlot(y)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        if (w->trains) {
          back.deferred_wgrad([w, positions, grad, dy](Context& wctx) {
            add_gradient(wctx, *w, grad, {positions.as<std::int32_t>(), dy, {}, 0, 1.0, 0, -1});
          });
        }
        back.add(in, std::move(dy));
      });
  return y;
}

}  // namespace bev
