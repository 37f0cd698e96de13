#include "ops/linear.h"

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "ops/linear_gemms.h"

namespace bev {

namespace {

Placement output_placement(const Var& x, const Param& weight) {
  PlaceState state = x.placement[Axis::kTp];
  auto need = [&](bool ok, const char* what) {
    BEV_CHECK(ok, ErrorKind::kInternal, "linear ", weight.name, ": the input {", x.placement,
              "} must be ", what, " over tp");
  };
  if (weight.split.dim == 0) {
    need(state == PlaceState::kCopied, "copied");
    return x.placement.with(Axis::kTp, PlaceState::kShard1);
  }
  if (weight.split.dim == 1) {
    need(state == PlaceState::kShard1, "shard(1)");
    return x.placement.with(Axis::kTp, PlaceState::kPartial);
  }
  need(state == PlaceState::kReplicated || state == PlaceState::kShard0, "whole or shard(0)");
  return x.placement;
}

}  // namespace

void add_bias_gradient(Context& ctx, const Param& bias, const Tensor& dy,
                       const Placement& placement) {
  GradSink sink = ctx.grads.sink(bias, placement);
  ctx.kernels.elementwise.column_sum(ctx.stream, dy, sink.beta, sink.view);
  ctx.grads.done(bias, std::move(sink));
}

Var linear(Context& ctx, const Var& x, const Param& weight, const Param* bias) {
  OpScope scope(ctx, "linear");
  BEV_CHECK(x.shape().ndim() == 2 && x.shape()[1] == weight.local[1], "linear ", weight.name,
            ": input ", x.shape(), " for a weight ", weight.local);
  Placement placement = output_placement(x, weight);
  BEV_CHECK(bias == nullptr || weight.split.dim != 1, ErrorKind::kInternal, "linear ", weight.name,
            ": the bias of a row-parallel linear is added after the reduction");
  Tensor y = ctx.allocate(ctx.dtype, {x.shape()[0], weight.local[0]}, "activations");
  KeptInput kept = forward_and_keep(ctx, x, weight, bias, y);
  bool trains = weight.trains || (bias && bias->trains);
  Var out = make_output(ctx, "linear", std::move(y), placement, x.tracked() || trains);
  if (!out.tracked()) return out;

  Placement dw_placement = gradient_placement(weight, x.placement);
  Placement db_placement = bias ? gradient_placement(*bias, x.placement) : Placement();
  ctx.tape->record(
      "linear", ctx.layer,
      [w = &weight, bias, dw_placement, db_placement, kept, in = GradSlot(x),
       result = GradSlot(out)](Backward& back) {
        Value dy = back.take_value(result);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        TensorScale scale = tensor_scale(bctx, *w, Fp8Role::kGradient, dy, result.placement.dual());
        GemmOperand operand =
            make_operand(bctx, *w, Fp8Role::kGradient, scale, dy, {in.wanted(), w->trains});
        if (in.wanted()) {
          Tensor dx = bctx.allocate(dy.dtype(), {dy.shape()[0], w->local[1]}, "gradients");
          dgrad_gemm(bctx, *w, operand, dx);
          // Column parallel: dx is a partial sum over tp.
          PlaceState dx_state = w->split.dim == 0 ? PlaceState::kPartial : in.placement[Axis::kTp];
          back.add(in, std::move(dx), in.placement.dual().with(Axis::kTp, dx_state));
        }
        if (bias && bias->trains) {
          back.deferred_wgrad([bias, db_placement, rows = dy.get(bctx)](Context& wctx) {
            add_bias_gradient(wctx, *bias, rows, db_placement);
          });
        }
        if (!w->trains) return;
        operand.quantized.rows = operand.quantized.row_scales = Tensor();
        back.deferred_wgrad([w, dw_placement, kept, operand](Context& wctx) {
          add_wgrad(wctx, *w, dw_placement, operand, kept.get(wctx, *w));
        });
      });
  return out;
}

namespace {

// Columns of y from `first` on, as an operand whose rows are padded to those of y.
View columns_from(const Tensor& y, std::int64_t first) {
  return {y.view().address(first), y.dtype(), y.shape()};
}

// State of the backward of add_linear.
struct AddLinearBackward {
  const Param* weight;
  AddLinear to;
  Placement weight_placement;
  Saved x;
  GradSlot from_y, from_x;

  void run(Backward& back, const Tensor& dy) const {
    Context& ctx = back.ctx;
    const std::int64_t columns = weight->local[0];
    if (from_x.wanted()) {
      WeightLease w = ctx.weights.use(*weight);
      Tensor dx = ctx.allocate(dy.dtype(), {dy.shape()[0], weight->local[1]}, "gradients");
      weight_gemm(ctx, *weight,
                  {.a = columns_from(dy, to.first),
                   .b = w.view,
                   .c = dx,
                   .alpha = to.scale,
                   .a_columns = columns});
      // Column parallel: dx is a partial sum over tp.
      PlaceState state =
          weight->split.dim == 0 ? PlaceState::kPartial : from_x.placement[Axis::kTp];
      back.add(from_x, std::move(dx), from_x.placement.dual().with(Axis::kTp, state));
    }
    if (weight->trains) {
      back.deferred_wgrad([s = *this, dy, columns](Context& wctx) {
        GradSink sink = wctx.grads.sink(*s.weight, s.weight_placement);
        wctx.kernels.gemm.gemm(wctx.stream, {.a = columns_from(dy, s.to.first),
                                             .b = s.x.get(wctx),
                                             .c = sink.view,
                                             .transpose_a = true,
                                             .alpha = s.to.scale,
                                             .beta = sink.beta,
                                             .a_columns = columns});
        wctx.grads.done(*s.weight, std::move(sink));
      });
    }
    back.add(from_y, dy);
  }
};

}  // namespace

Var add_linear(Context& ctx, const Var& y, const Var& x, const Param& weight, const AddLinear& to) {
  OpScope scope(ctx, "add_linear");
  const std::int64_t columns = weight.local[0];
  BEV_CHECK(x.shape()[1] == weight.local[1] && x.shape()[0] == y.shape()[0] &&
                to.first + columns <= y.shape()[1],
            "add_linear ", weight.name, ": input ", x.shape(), " for a weight ", weight.local,
            " and columns from ", to.first, " of ", y.shape());
  BEV_CHECK(output_placement(x, weight) == y.placement, ErrorKind::kInternal, "add_linear ",
            weight.name, ": the product is {", output_placement(x, weight), "}, the sum {",
            y.placement, "}");
  {
    WeightLease w = ctx.weights.use(weight);
    weight_gemm(ctx, weight,
                {.a = x.get(ctx),
                 .b = w.view,
                 .c = columns_from(y.tensor, to.first),
                 .transpose_b = true,
                 .alpha = to.scale,
                 .beta = 1,
                 .c_columns = columns});
  }
  Var out = make_output(ctx, "add_linear", y.tensor, y.placement,
                        y.tracked() || x.tracked() || weight.trains);
  if (!out.tracked()) return out;
  AddLinearBackward backward{&weight,
                             to,
                             gradient_placement(weight, x.placement),
                             weight.trains ? Saved(x) : Saved(),
                             GradSlot(y),
                             GradSlot(x)};
  ctx.tape->record("add_linear", ctx.layer, [backward, result = GradSlot(out)](Backward& back) {
    Tensor dy = back.take(result);
    if (!dy.empty()) backward.run(back, dy);
  });
  return out;
}

Var add_bias(Context& ctx, const Var& x, const Param& bias) {
  OpScope scope(ctx, "add_bias");
  BEV_CHECK(x.shape().ndim() == 2 && x.shape()[1] == bias.local[0], "add_bias ", bias.name,
            ": input ", x.shape(), " for a bias ", bias.local);
  BEV_CHECK(x.placement[Axis::kTp] != PlaceState::kPartial, ErrorKind::kInternal, "add_bias ",
            bias.name, ": the input {", x.placement,
            "} is a partial sum, every rank would add the bias");
  {
    WeightLease b = ctx.weights.use(bias);
    ctx.kernels.elementwise.add_rows(ctx.stream, x.tensor, b.view);
  }
  Var out = make_output(ctx, "add_bias", x.tensor, x.placement, x.tracked() || bias.trains);
  if (!out.tracked()) return out;
  ctx.tape->record("add_bias", ctx.layer,
                   [b = &bias, placement = gradient_placement(bias, x.placement), in = GradSlot(x),
                    result = GradSlot(out)](Backward& back) {
                     Value dy = back.take_value(result);
                     if (dy.empty()) return;
                     if (b->trains) {
                       back.deferred_wgrad([b, placement, rows = dy.get(back.ctx)](Context& wctx) {
                         add_bias_gradient(wctx, *b, rows, placement);
                       });
                     }
                     back.add(in, std::move(dy));
                   });
  return out;
}

}  // namespace bev
