#include "ops/low_rank.h"

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/gemm.h"
#include "kernels/low_rank.h"

namespace bev {

Tensor row_squares(Context& ctx, const AdaptedRows& rows) {
  OpScope scope(ctx, "row_squares");
  WeightLease w = ctx.weights.use(*rows.weight);
  WeightLease a = ctx.weights.use(*rows.a), b = ctx.weights.use(*rows.b);
  const std::int64_t out = b.view.shape[0], in = a.view.shape[1];
  Tensor adapted = ctx.allocate(ctx.wide(), {out, in}, "adapted weight");
  ctx.kernels.cast(ctx.stream, w.view.rows(rows.first, rows.first + out), adapted);
  ctx.kernels.gemm.gemm(ctx.stream,
                        {.a = b.view, .b = a.view, .c = adapted, .alpha = rows.scale, .beta = 1});
  Tensor squares = ctx.allocate(ctx.wide(), {out}, "row norms");
  ctx.kernels.low_rank.row_squares(ctx.stream, adapted, squares);
  if (rows.weight->split.dim == 1) {
    ctx.mesh.tp().all_reduce(squares, Reduction::kSum, "row norms").wait();
  }
  return squares;
}

namespace {

using Parts = std::array<MagnitudeColumns, kMostMagnitudes>;

// x with its columns scaled, as a new tensor.
Tensor scaled_columns(Context& ctx, const Tensor& x, const Parts& parts, const char* tag) {
  Tensor out = ctx.allocate(x.dtype(), x.shape(), tag);
  ctx.kernels.cast(ctx.stream, x, out);
  for (const MagnitudeColumns& part : parts) {
    if (part.magnitude == nullptr) continue;
    WeightLease magnitude = ctx.weights.use(*part.magnitude);
    ctx.kernels.low_rank.scale_columns(ctx.stream, {.x = out,
                                                    .y = out,
                                                    .first = part.first,
                                                    .magnitude = magnitude.view,
                                                    .squares = part.squares});
  }
  return out;
}

void add_magnitude_gradient(Backward& back, const MagnitudeColumns& part,
                            const Placement& placement, const Tensor& dy, const Tensor& y) {
  if (part.magnitude == nullptr || !part.magnitude->trains) return;
  back.deferred_wgrad([part, placement, dy, y](Context& ctx) {
    GradSink sink = ctx.grads.sink(*part.magnitude, placement);
    ctx.kernels.low_rank.column_dots(ctx.stream, {.a = dy,
                                                  .b = y,
                                                  .first = part.first,
                                                  .squares = part.squares,
                                                  .beta = sink.beta,
                                                  .out = sink.view});
    ctx.grads.done(*part.magnitude, std::move(sink));
  });
}

}  // namespace

Var scale_columns(Context& ctx, const Var& y, const Parts& parts) {
  OpScope scope(ctx, "scale_columns");
  BEV_CHECK(y.placement[Axis::kTp] != PlaceState::kPartial, ErrorKind::kInternal,
            "scale_columns: the input {", y.placement, "} is a partial sum");
  bool trains = y.tracked();
  for (const MagnitudeColumns& part : parts) {
    trains = trains || (part.magnitude != nullptr && part.magnitude->trains);
  }
  Var out = make_output(ctx, "scale_columns", scaled_columns(ctx, y.tensor, parts, "activations"),
                        y.placement, trains);
  if (!out.tracked()) return out;
  ctx.tape->record("scale_columns", ctx.layer,
                   [parts, y = y.tensor, in = GradSlot(y), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     for (const MagnitudeColumns& part : parts) {
                       if (part.magnitude == nullptr) continue;
                       Placement placement = gradient_placement(*part.magnitude, in.placement);
                       add_magnitude_gradient(back, part, placement, dy, y);
                     }
                     if (!in.wanted()) return;
                     back.add(in, scaled_columns(back.ctx, dy, parts, "gradients"));
                   });
  return out;
}

}  // namespace bev
