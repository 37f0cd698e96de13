#include "ops/elementwise.h"

#include "autograd/op_scope.h"
#include "autograd/quantize.h"
#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/elementwise.h"
#include "ops/amax.h"
#include "ops/converted.h"

namespace bev {

Var add(Context& ctx, const Var& a, const Var& b) {
  OpScope scope(ctx, "add");
  BEV_CHECK(a.shape() == b.shape() && a.placement == b.placement, "add: ", a.shape(), " {",
            a.placement, "} and ", b.shape(), " {", b.placement, "}");
  Tensor sum = ctx.allocate(a.dtype(), a.shape(), "activations");
  ctx.kernels.elementwise.add(ctx.stream, a.tensor, b.tensor, sum);
  Var out = make_output(ctx, "add", std::move(sum), a.placement, a.tracked() || b.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("add", ctx.layer,
                   [to_a = GradSlot(a), to_b = GradSlot(b), narrow = b.dtype(),
                    result = GradSlot(out)](Backward& back) {
                     Value dy = back.take_value(result);
                     if (dy.empty()) return;
                     back.add(to_a, dy);
                     if (!to_b.wanted() || dy.dtype() == narrow)
                       return back.add(to_b, std::move(dy));
                     back.add(to_b, converted(back.ctx, dy.get(back.ctx), narrow, "gradients"));
                   });
  return out;
}

Var convert(Context& ctx, const Var& x, Dtype dtype) {
  if (x.dtype() == dtype) return x;
  OpScope scope(ctx, "convert");
  Var out = make_output(ctx, "convert", converted(ctx, x.get(ctx), dtype, "activations"),
                        x.placement, x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("convert", ctx.layer,
                   [given = x.dtype(), in = GradSlot(x), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (!dy.empty()) back.add(in, converted(back.ctx, dy, given, "gradients"));
                   });
  return out;
}

namespace {
Tensor times(Context& ctx, const Tensor& x, double factor, const char* tag) {
  Tensor out = ctx.allocate(x.dtype(), x.shape(), tag);
  ctx.kernels.fill(ctx.stream, out, 0);
  ctx.kernels.elementwise.axpby(ctx.stream, factor, x, 1, out);
  return out;
}
}  // namespace

Var scaled(Context& ctx, const Var& x, double factor) {
  if (factor == 1) return x;
  OpScope scope(ctx, "scaled");
  Var out = make_output(ctx, "scaled", times(ctx, x.tensor, factor, "activations"), x.placement,
                        x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("scaled", ctx.layer,
                   [factor, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (!dy.empty()) back.add(in, times(back.ctx, dy, factor, "gradients"));
                   });
  return out;
}

Var join_columns(Context& ctx, const Var& a, const Var& b) {
  OpScope scope(ctx, "join_columns");
  BEV_CHECK(a.shape()[0] == b.shape()[0] && a.placement == b.placement, "join_columns: ", a.shape(),
            " {", a.placement, "} and ", b.shape(), " {", b.placement, "}");
  std::int64_t rows = a.shape()[0], first = a.shape()[1], second = b.shape()[1];
  std::int64_t width = first + second;
  Tensor both = ctx.allocate(a.dtype(), {rows, width}, "activations");
  auto put = [&](const Tensor& from, std::int64_t begin, std::int64_t columns) {
    ctx.kernels.elementwise.copy_rows(ctx.stream, {.src = from.view().data,
                                                   .dst = both.view().address(begin),
                                                   .dtype = from.dtype(),
                                                   .rows = rows,
                                                   .columns = columns,
                                                   .src_stride = columns,
                                                   .dst_stride = width});
  };
  put(a.tensor, 0, first);
  put(b.tensor, first, second);
  Var out = make_output(ctx, "join_columns", both, a.placement, a.tracked() || b.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("join_columns", ctx.layer,
                   [rows, first, second, width, to_a = GradSlot(a), to_b = GradSlot(b),
                    result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     auto give = [&](const GradSlot& to, std::int64_t begin, std::int64_t columns) {
                       if (!to.wanted()) return;
                       Tensor dx = back.ctx.allocate(dy.dtype(), {rows, columns}, "gradients");
                       back.ctx.kernels.elementwise.copy_rows(back.ctx.stream,
                                                              {.src = dy.view().address(begin),
                                                               .dst = dx.view().data,
                                                               .dtype = dy.dtype(),
                                                               .rows = rows,
                                                               .columns = columns,
                                                               .src_stride = width,
                                                               .dst_stride = columns});
                       back.add(to, std::move(dx));
                     };
                     give(to_a, 0, first);
                     give(to_b, first, second);
                   });
  return out;
}

Var branch(Context& ctx, const Var& x) {
  Var out = make_output(ctx, "branch", x.tensor, x.placement, x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("branch", ctx.layer, [in = GradSlot(x), result = GradSlot(out)](Backward& back) {
    Value dy = back.take_value(result);
    if (!dy.empty()) back.add(in, std::move(dy));
  });
  return out;
}

Var dropout(Context& ctx, const Var& x, double p, const SequenceLayout& layout, RandomUse use) {
  if (p <= 0 || !ctx.training) return x;
  OpScope scope(ctx, "dropout");
  PlaceState state = x.placement[Axis::kTp];
  BEV_CHECK(state == PlaceState::kReplicated || state == PlaceState::kShard0, ErrorKind::kInternal,
            "dropout: the input {", x.placement, "} must be whole over tp");
  RandomRows random = random_rows(ctx, layout, x.placement, use);
  ctx.kernels.elementwise.dropout(ctx.stream, {x.tensor, x.tensor, p, random});
  Var out = make_output(ctx, "dropout", x.tensor, x.placement, x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record(
      "dropout", ctx.layer, [p, random, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Tensor dx = dy.unique() ? dy : back.ctx.allocate(dy.dtype(), dy.shape(), "gradients");
        back.ctx.kernels.elementwise.dropout(back.ctx.stream, {dy, dx, p, random});
        back.add(in, std::move(dx));
      });
  return out;
}

Var dropout_copy(Context& ctx, const Var& x, const SequenceLayout& layout,
                 const DropoutSpec& spec) {
  if (spec.p <= 0 || !ctx.training) return x;
  OpScope scope(ctx, "dropout_copy");
  RandomRows random = random_rows(ctx, layout, x.placement, spec.use, spec.head);
  random.first_column = spec.first;
  Tensor kept = ctx.allocate(x.dtype(), x.shape(), "activations");
  ctx.kernels.elementwise.dropout(ctx.stream, {x.get(ctx), kept, spec.p, random});
  Var out = make_output(ctx, "dropout_copy", std::move(kept), x.placement, x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("dropout_copy", ctx.layer,
                   [p = spec.p, random, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Tensor dx =
                         dy.unique() ? dy : back.ctx.allocate(dy.dtype(), dy.shape(), "gradients");
                     back.ctx.kernels.elementwise.dropout(back.ctx.stream, {dy, dx, p, random});
                     back.add(in, std::move(dx));
                   });
  return out;
}

Shape activated_shape(const ActivationSpec& spec, const Shape& x) {
  return {x[0], spec.gated ? x[1] / 2 : x[1]};
}

namespace {

class ActivationRecipe : public Recipe {
 public:
  ActivationRecipe(const ActivationSpec& spec, Saved x) : spec_(spec), x_(std::move(x)) {}
  Tensor make(Context& ctx) const override {
    Tensor x = x_.get(ctx);
    Tensor y = ctx.allocate(x.dtype(), activated_shape(spec_, x.shape()), "recomputed");
    ctx.kernels.activation.forward(
        ctx.stream,
        {.x = x, .y = y, .kind = spec_.kind, .gated = spec_.gated, .limits = spec_.limits});
    return y;
  }
  Quantized quantize(Context& ctx, QuantizeRequest request) const override {
    if (!request.takes_maker()) return Recipe::quantize(ctx, request);
    Tensor x = x_.get(ctx);
    Tensor y = Tensor::unwritten(x.dtype(), activated_shape(spec_, x.shape()));
    ActivationForwardArgs args{x, y, spec_.kind, spec_.gated, spec_.limits};
    request.x = y;
    request.maker.activation = &args;
    return bev::quantize({ctx.kernels, ctx.stream, ctx.arena}, request);
  }

 private:
  ActivationSpec spec_;
  Saved x_;
};

// Input gradient of the activation, computed when it is read.
class ActivationGradientRecipe : public Recipe {
 public:
  ActivationGradientRecipe(const ActivationSpec& spec, Tensor dy, Tensor x)
      : spec_(spec), dy_(std::move(dy)), x_(std::move(x)) {}
  Tensor make(Context& ctx) const override {
    Tensor dx = ctx.allocate(x_.dtype(), x_.shape(), "gradients");
    ctx.kernels.activation.backward(ctx.stream, args(dx));
    return dx;
  }
  Quantized quantize(Context& ctx, QuantizeRequest request) const override {
    if (!request.takes_maker()) return Recipe::quantize(ctx, request);
    Tensor dx = Tensor::unwritten(x_.dtype(), x_.shape());
    ActivationBackwardArgs made = args(dx);
    request.x = dx;
    request.maker.activation_gradient = &made;
    return bev::quantize({ctx.kernels, ctx.stream, ctx.arena}, request);
  }

 private:
  ActivationBackwardArgs args(const Tensor& dx) const {
    return {dy_, x_, dx, spec_.kind, spec_.gated, spec_.limits};
  }

  ActivationSpec spec_;
  Tensor dy_, x_;
};

void activation_backward(Backward& back, const ActivationSpec& spec, const Saved& saved,
                         const GradSlot& in, const Tensor& dy) {
  Context& ctx = back.ctx;
  Tensor x = saved.get(ctx);
  if (spec.unwritten && ctx.probe == nullptr) {
    auto recipe = back.make_recipe<ActivationGradientRecipe>(spec, dy, x);
    return back.add(in, Value(Tensor::unwritten(x.dtype(), x.shape()), std::move(recipe), {}));
  }
  Tensor dx = ctx.allocate(x.dtype(), x.shape(), "gradients");
  Tensor amax = spec.amax ? zero_amax(ctx) : Tensor();
  ctx.kernels.activation.backward(ctx.stream, {.dy = dy,
                                               .x = x,
                                               .dx = dx,
                                               .kind = spec.kind,
                                               .gated = spec.gated,
                                               .limits = spec.limits,
                                               .amax = address_of(amax)});
  back.add(in, Value(std::move(dx), std::move(amax)));
}

}  // namespace

Var activation(Context& ctx, const Var& x, const ActivationSpec& spec) {
  OpScope scope(ctx, "activation");
  BEV_CHECK(x.shape().ndim() == 2 && (!spec.gated || x.shape()[1] % 2 == 0), "activation: input ",
            x.shape(), spec.gated ? " of a gated activation" : "");
  BEV_CHECK(x.placement[Axis::kTp] != PlaceState::kPartial, ErrorKind::kInternal,
            "activation: the input {", x.placement, "} is a partial sum");
  // With a probe (non-finite checks) the result is materialised, so that it can be inspected.
  bool writes = !spec.unwritten || ctx.probe != nullptr;
  Shape shape = activated_shape(spec, x.shape());
  Tensor y =
      writes ? ctx.allocate(x.dtype(), shape, "activations") : Tensor::unwritten(x.dtype(), shape);
  Tensor amax = spec.amax ? zero_amax(ctx) : Tensor();
  if (writes) {
    ctx.kernels.activation.forward(ctx.stream, {.x = x.tensor,
                                                .y = y,
                                                .kind = spec.kind,
                                                .gated = spec.gated,
                                                .limits = spec.limits,
                                                .amax = address_of(amax)});
  }
  Var out = make_output(ctx, "activation", std::move(y), x.placement, x.tracked());
  out.amax = std::move(amax);
  if (!writes) out.source = make_recipe<ActivationRecipe>(ctx, spec, Saved(x));
  if (!out.tracked()) return out;
  if (spec.regenerate) {
    out.recipe = writes ? make_recipe<ActivationRecipe>(ctx, spec, Saved(x)) : out.source;
  }
  ctx.tape->record(
      "activation", ctx.layer,
      [spec, saved = Saved(x), in = GradSlot(x), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (!dy.empty()) activation_backward(back, spec, saved, in, dy);
      });
  return out;
}

}  // namespace bev
