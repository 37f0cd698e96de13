// Router logits: a GEMM in the router dtype, with optional input jitter or random logits for
// benchmarks.
#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/router.h"
#include "ops/converted.h"
#include "ops/linear.h"
#include "ops/moe/moe.h"

namespace bev {

namespace {

class JitterRecipe final : public Recipe {
 public:
  JitterRecipe(Saved x, double epsilon, const RandomRows& random)
      : x_(std::move(x)), epsilon_(epsilon), random_(random) {}
  Tensor make(Context& ctx) const override {
    Tensor x = x_.get(ctx), y = ctx.allocate(x.dtype(), x.shape(), "recomputed");
    ctx.kernels.router.jitter(ctx.stream, {x, y, epsilon_, random_});
    return y;
  }

 private:
  Saved x_;
  double epsilon_;
  RandomRows random_;
};

// Consumers recompute the result in the backward instead of saving it.
Var jitter(Context& ctx, const Var& x, double epsilon, const SequenceLayout& layout) {
  OpScope scope(ctx, "jitter");
  RandomRows random = random_rows(ctx, layout, x.placement, RandomUse::kRouterJitter);
  Tensor y = ctx.allocate(x.tensor.dtype(), x.shape(), "activations");
  ctx.kernels.router.jitter(ctx.stream, {x.tensor, y, epsilon, random});
  Var out = make_output(ctx, "jitter", std::move(y), x.placement, x.tracked());
  if (ctx.tape == nullptr) return out;
  out.recipe = ctx.tape->make_recipe<JitterRecipe>(Saved(x), epsilon, random);
  if (!out.tracked()) return out;
  ctx.tape->record("jitter", ctx.layer,
                   [epsilon, random, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Tensor dx =
                         dy.unique() ? dy : back.ctx.allocate(dy.dtype(), dy.shape(), "gradients");
                     back.ctx.kernels.router.jitter(back.ctx.stream, {dy, dx, epsilon, random});
                     back.add(in, std::move(dx));
                   });
  return out;
}

// Uniform in (0, 2), so that every expert is equally likely.
Var random_logits(Context& ctx, const Var& logits, const SequenceLayout& layout) {
  OpScope scope(ctx, "random_logits");
  RandomRows random = random_rows(ctx, layout, logits.placement, RandomUse::kRouterLogits);
  Tensor drawn = ctx.allocate(logits.tensor.dtype(), logits.shape(), "router");
  ctx.kernels.fill(ctx.stream, drawn, 1);
  ctx.kernels.router.jitter(ctx.stream, {drawn, drawn, 1, random});
  Var out = make_output(ctx, "random_logits", std::move(drawn), logits.placement, logits.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("random_logits", ctx.layer,
                   [in = GradSlot(logits), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (!dy.empty()) back.add(in, std::move(dy));
                   });
  return out;
}

Dtype compute_dtype(const Context& ctx, RouterDtype wanted) {
  if (wanted == RouterDtype::kF64 || ctx.dtype == Dtype::kF64) return Dtype::kF64;
  return wanted == RouterDtype::kF32 ? Dtype::kF32 : ctx.dtype;
}

WeightLease leased(Context& ctx, const Param& param, Dtype dtype) {
  WeightLease lease = ctx.weights.use(param);
  if (lease.view.dtype == dtype) return lease;
  Tensor out = ctx.allocate(dtype, param.local, "router");
  ctx.kernels.cast(ctx.stream, lease.view, out);
  return {out, out};
}

void add_wgrad(Context& ctx, const Param& weight, const Placement& placement, const Tensor& x,
               const Tensor& dy) {
  GradSink sink = ctx.grads.sink(weight, placement);
  if (dy.dtype() == ctx.dtype) {
    ctx.kernels.gemm.gemm(
        ctx.stream, {.a = dy, .b = x, .c = sink.view, .transpose_a = true, .beta = sink.beta});
  } else {
    Tensor wide = converted(ctx, x, dy.dtype(), "recomputed");
    Tensor sum = ctx.allocate(dy.dtype(), weight.local, "gradients");
    ctx.kernels.gemm.gemm(ctx.stream, {.a = dy, .b = wide, .c = sum, .transpose_a = true});
    ctx.kernels.elementwise.axpby(ctx.stream, 1, sum, sink.beta, sink.view);
  }
  ctx.grads.done(weight, std::move(sink));
}

// dgrad of the router: accumulates onto the gradient from the experts if that is not shared.
void add_dgrad(Backward& back, const GradSlot& in, const Param& weight, const Tensor& dy) {
  Context& ctx = back.ctx;
  Tensor dx = back.take(in);
  bool adds = !dx.empty() && dx.unique() && dx.dtype() == dy.dtype();
  if (!adds) {
    if (!dx.empty()) back.add(in, std::move(dx));
    dx = ctx.allocate(dy.dtype(), {dy.shape()[0], weight.local[1]}, "gradients");
  }
  WeightLease lease = leased(ctx, weight, dy.dtype());
  ctx.kernels.gemm.gemm(ctx.stream, {.a = dy, .b = lease.view, .c = dx, .beta = adds ? 1.0 : 0.0});
  back.add(in, converted(ctx, dx, ctx.dtype, "gradients"));
}

Var logits_gemm(Context& ctx, const Var& x, const Param& weight, const Param* bias, Dtype dtype) {
  OpScope scope(ctx, "router");
  BEV_CHECK(x.shape().ndim() == 2 && x.shape()[1] == weight.local[1], "router ", weight.name,
            ": input ", x.shape(), " for a weight ", weight.local);
  Tensor logits = ctx.allocate(wide_of(dtype), {x.shape()[0], weight.local[0]}, "router");
  {
    WeightLease w = leased(ctx, weight, dtype);
    WeightLease b = bias ? leased(ctx, *bias, dtype) : WeightLease{};
    Tensor in = converted(ctx, x.tensor, dtype, "router");
    ctx.kernels.gemm.gemm(ctx.stream,
                          {.a = in, .b = w.view, .c = logits, .transpose_b = true, .bias = b.view});
  }
  bool trains = weight.trains || (bias && bias->trains);
  Var out = make_output(ctx, "router", std::move(logits), x.placement, x.tracked() || trains);
  if (!out.tracked()) return out;
  ctx.tape->record("router", ctx.layer,
                   [w = &weight, bias, dtype, placement = gradient_placement(weight, x.placement),
                    saved = weight.trains ? Saved(x) : Saved(), in = GradSlot(x),
                    result = GradSlot(out)](Backward& back) {
                     Tensor wide = back.take(result);
                     if (wide.empty()) return;
                     Context& bctx = back.ctx;
                     // GEMM operands must have one dtype.
                     Tensor dy = converted(bctx, wide, dtype, "gradients");
                     if (in.wanted()) add_dgrad(back, in, *w, dy);
                     back.deferred_wgrad([w, bias, placement, saved, dy](Context& wctx) {
                       if (bias && bias->trains) add_bias_gradient(wctx, *bias, dy, placement);
                       if (w->trains) add_wgrad(wctx, *w, placement, saved.get(wctx), dy);
                     });
                   });
  return out;
}

}  // namespace

Var router_logits(Context& ctx, const Var& x, const Param& weight, const Param* bias,
                  const RouterSpec& spec, const SequenceLayout* layout) {
  bool noisy = ctx.training && layout != nullptr;
  Var in = noisy && spec.jitter > 0 ? jitter(ctx, x, spec.jitter, *layout) : x;
  Var logits = logits_gemm(ctx, in, weight, bias, compute_dtype(ctx, spec.dtype));
  return noisy && spec.random_logits ? random_logits(ctx, logits, *layout) : logits;
}

}  // namespace bev
