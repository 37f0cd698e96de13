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

namespace {
// x += table[index - first_row] on every row, in place. `op` must be a literal.
Var add_table_rows(Context& ctx, const char* op, const Var& x, const Tensor& index,
                   const Param& table, std::int64_t first_row) {
  OpScope scope(ctx, op);
  const Param& weight = in_use(ctx, table);
  {
    WeightLease w = ctx.weights.use(weight);
    ctx.kernels.embedding.forward(ctx.stream, {.index = index.as<std::int32_t>(),
                                               .weight = w.view,
                                               .out = x.tensor,
                                               .first_row = first_row,
                                               .scale = 1.0,
                                               .accumulate = true});
  }
  Var y = make_output(ctx, op, x.tensor, x.placement, x.tracked() || weight.trains);
  if (!y.tracked()) return y;
  ctx.tape->record(
      op, ctx.layer,
      [w = &weight, index, first_row, grad = gradient_placement(weight, x.placement),
       in = GradSlot(x), result = GradSlot(y)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        if (w->trains) {
          back.deferred_wgrad([w, index, first_row, grad, dy](Context& wctx) {
            add_gradient(wctx, *w, grad, {index.as<std::int32_t>(), dy, {}, first_row, 1.0, 0, -1});
          });
        }
        back.add(in, std::move(dy));
      });
  return y;
}

// The rows that x holds of a value for each token.
Tensor own_index(Context& ctx, const char* op, const Var& x, const SequenceLayout& layout,
                 const Tensor& index) {
  PlaceState state = x.placement[Axis::kTp];
  BEV_CHECK(state == PlaceState::kReplicated || state == PlaceState::kShard0, ErrorKind::kInternal,
            op, ": the input {", x.placement, "} must be whole over tp");
  Range rows = token_rows(ctx, layout, x.placement);
  return index.rows(rows.begin, rows.end);
}
}  // namespace

Var add_positions(Context& ctx, const Var& x, const SequenceLayout& layout, const Param& table,
                  std::int64_t offset) {
  Tensor positions = own_index(ctx, "add_positions", x, layout, layout.positions);
  return add_table_rows(ctx, "add_positions", x, positions, table, -offset);
}

Var add_token_types(Context& ctx, const Var& x, const SequenceLayout& layout, const Tensor& types,
                    const Param& table) {
  Tensor all = types;
  if (all.empty()) {
    all = ctx.allocate(Dtype::kI32, {layout.tokens}, "activations");
    ctx.kernels.fill(ctx.stream, {all.view().data, Dtype::kF32, all.shape()}, 0);  // the same bits
  }
  Tensor index = own_index(ctx, "add_token_types", x, layout, all);
  return add_table_rows(ctx, "add_token_types", x, index, table, 0);
}

}  // namespace bev
