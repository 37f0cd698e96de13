// Grouped linear: grouped GEMM of MoE experts with dgrad and wgrad, in the model dtype or in FP8.
#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/moe.h"
#include "kernels/quantize.h"
#include "ops/linear_gemms.h"
#include "ops/moe/moe.h"

namespace bev {

namespace {

Placement grouped_placement(const Var& x, const Param& weight) {
  PlaceState state = x.placement[Axis::kEtp];
  if (weight.split.dim < 0) {
    BEV_CHECK(state == PlaceState::kCopied || state == PlaceState::kPartial, ErrorKind::kInternal,
              "grouped_linear ", weight.name, ": the input {", x.placement,
              "} must be copied or partial over etp");
    return x.placement;
  }
  bool column = weight.split.dim == 1;
  BEV_CHECK(column || weight.split.dim == 2, ErrorKind::kInternal, "grouped_linear ", weight.name,
            ": the weight must be split over dim 1 or 2, or whole");
  BEV_CHECK(state == (column ? PlaceState::kCopied : PlaceState::kShard1), ErrorKind::kInternal,
            "grouped_linear ", weight.name, ": the input {", x.placement, "} must be ",
            column ? "copied" : "shard(1)", " over etp");
  return x.placement.with(Axis::kEtp, column ? PlaceState::kShard1 : PlaceState::kPartial);
}

// Grouped GEMMs of one set of expert weights and biases, in the model dtype or in FP8.
struct GroupedUse {
  const Param *weight, *bias;
  Placement weight_placement, bias_placement;
  Tensor offsets;
  std::int64_t rows;

  bool bias_trains() const { return bias != nullptr && bias->trains; }
  const std::int32_t* ends() const { return offsets.as<std::int32_t>(); }
  // Scales are blockwise, so they need no amax from outside.
  GemmOperand operand(Context& ctx, Fp8Role role, const Value& x, bool gemm, bool gradient) const {
    QuantizeGroups groups{ends(), weight->local[0], rows};
    return make_operand(ctx, *weight, role, {}, x, {gemm, gradient, groups});
  }

  // Forward: y [R, O] from x.
  void forward(Context& ctx, const GemmOperand& x, const View& y) const {
    WeightLease b = bias ? ctx.weights.use(*bias) : WeightLease{};
    if (weight->fp8.used()) {
      Quantized w = ctx.weights.quantized(*weight);
      ctx.kernels.quantize.grouped_gemm(ctx.stream, {.a = x.quantized.by_rows(),
                                                     .b = w.by_rows(),
                                                     .c = y,
                                                     .bias = b.view,
                                                     .offsets = ends(),
                                                     .experts = weight->local[0]});
    } else {
      WeightLease w = ctx.weights.use(*weight);
      ctx.kernels.moe.grouped_gemm(
          ctx.stream, {.x = x.plain, .w = w.view, .y = y, .bias = b.view, .offsets = ends()});
    }
  }

  // dgrad: dx [R, I] from dy.
  void dgrad(Context& ctx, const GemmOperand& dy, const View& dx) const {
    if (weight->fp8.used()) {
      Quantized w = ctx.weights.quantized(*weight);
      ctx.kernels.quantize.grouped_gemm(ctx.stream, {.a = dy.quantized.by_rows(),
                                                     .b = w.by_columns(),
                                                     .c = dx,
                                                     .offsets = ends(),
                                                     .experts = weight->local[0]});
    } else {
      WeightLease w = ctx.weights.use(*weight);
      ctx.kernels.moe.grouped_dgrad(ctx.stream,
                                    {.x = dx, .w = w.view, .y = dy.plain, .offsets = ends()});
    }
  }

  void add_bias_gradient(Context& ctx, const Tensor& dy) const {
    GradSink sink = ctx.grads.sink(*bias, bias_placement);
    ctx.kernels.moe.grouped_wgrad(
        ctx.stream,
        {.x = {}, .w = {}, .y = dy, .bias = sink.view, .offsets = ends(), .beta = sink.beta});
    ctx.grads.done(*bias, std::move(sink));
  }

  void add_wgrad(Context& ctx, const GemmOperand& dy, const Value& kept_x) const {
    GemmOperand x = operand(ctx, Fp8Role::kInput, kept_x, false, true);
    GradSink sink = ctx.grads.sink(*weight, weight_placement);
    if (weight->fp8.used() && weight->fp8.wgrad) {
      ctx.kernels.quantize.grouped_wgrad(ctx.stream, {.dy = dy.quantized.by_columns(),
                                                      .x = x.quantized.by_columns(),
                                                      .w = sink.view,
                                                      .offsets = ends(),
                                                      .beta = sink.beta,
                                                      .squares = sink.squares});
    } else {
      ctx.kernels.moe.grouped_wgrad(ctx.stream, {.x = x.plain,
                                                 .w = sink.view,
                                                 .y = dy.plain,
                                                 .offsets = ends(),
                                                 .beta = sink.beta,
                                                 .squares = sink.squares});
    }
    sink.squared = sink.squares != nullptr;
    ctx.grads.done(*weight, std::move(sink));
  }
};

// Drops the part of dy that only dgrad needs.
GemmOperand without_rows(GemmOperand dy) {
  dy.quantized.rows = dy.quantized.row_scales = Tensor();
  return dy;
}

void grouped_backward(Backward& back, const GroupedUse& use, const Saved& x, const GradSlot& in,
                      Value dy) {
  Context& ctx = back.ctx;
  // The bias gradient sums all rows of dy, so dy must be materialised.
  if (use.bias_trains()) dy = dy.get(ctx);
  GemmOperand operand = use.operand(ctx, Fp8Role::kGradient, dy, in.wanted(), use.weight->trains);
  if (in.wanted()) {
    Tensor dx = ctx.allocate(dy.dtype(), {use.rows, use.weight->local[2]}, "gradients");
    use.dgrad(ctx, operand, dx);
    back.add(in, std::move(dx));
  }
  Tensor sums = use.bias_trains() ? dy.tensor : Tensor();
  back.deferred_wgrad([use, x, sums, operand = without_rows(std::move(operand))](Context& wctx) {
    if (!sums.empty()) use.add_bias_gradient(wctx, sums);
    if (use.weight->trains) use.add_wgrad(wctx, operand, x.value());
  });
}

}  // namespace

Var grouped_linear(Context& ctx, const Var& x, const ExpertRows& rows, const Param& weight,
                   const Param* bias) {
  OpScope scope(ctx, "grouped_linear");
  BEV_CHECK(x.shape()[1] == weight.local[2] && x.shape()[0] == rows.count() &&
                weight.local[0] + 1 == rows.offsets.numel(),
            "grouped_linear ", weight.name, ": input ", x.shape(), " for weights ", weight.local);
  Placement placement = grouped_placement(x, weight);
  GroupedUse use{&weight,
                 bias,
                 gradient_placement(weight, x.placement),
                 bias ? gradient_placement(*bias, x.placement) : Placement(),
                 rows.offsets,
                 rows.count()};
  Tensor y = ctx.allocate(ctx.dtype, {rows.count(), weight.local[1]}, "activations");
  use.forward(ctx, use.operand(ctx, Fp8Role::kInput, x, true, false), y);
  Var out = make_output(ctx, "grouped_linear", std::move(y), placement,
                        x.tracked() || weight.trains || use.bias_trains());
  if (!out.tracked()) return out;
  ctx.tape->record("grouped_linear", ctx.layer,
                   [use, kept = weight.trains ? Saved(x) : Saved(), in = GradSlot(x),
                    result = GradSlot(out)](Backward& back) {
                     Value dy = back.take_value(result);
                     if (!dy.empty()) grouped_backward(back, use, kept, in, std::move(dy));
                   });
  return out;
}

}  // namespace bev
