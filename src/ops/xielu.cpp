#include "ops/xielu.h"

#include <utility>

#include "autograd/op_scope.h"
#include "kernels/activation.h"

namespace bev {

namespace {
// Holds the coefficients while a kernel reads them.
struct Leases {
  WeightLease alpha_p, alpha_n, beta, eps;

  Leases(Context& ctx, const XieluParams& from)
      : alpha_p(ctx.weights.use(*from.alpha_p)),
        alpha_n(ctx.weights.use(*from.alpha_n)),
        beta(ctx.weights.use(*from.beta)),
        eps(ctx.weights.use(*from.eps)) {}
  XieluCoefficients views() const { return {alpha_p.view, alpha_n.view, beta.view, eps.view}; }
};
}  // namespace

Var xielu(Context& ctx, const Var& x, const XieluParams& given) {
  OpScope scope(ctx, "xielu");
  const XieluParams params = {&in_use(ctx, *given.alpha_p), &in_use(ctx, *given.alpha_n),
                              &in_use(ctx, *given.beta), &in_use(ctx, *given.eps)};
  Tensor y = ctx.allocate(ctx.dtype, x.shape(), "activations");
  {
    Leases leases(ctx, params);
    ctx.kernels.activation.xielu_forward(ctx.stream, {x.tensor, y, leases.views()});
  }
  Var out = make_output(ctx, "xielu", std::move(y), x.placement,
                        x.tracked() || params.alpha_p->trains || params.alpha_n->trains);
  if (!out.tracked()) return out;
  ctx.tape->record(
      "xielu", ctx.layer,
      [params, saved = Saved(x), outer = x.placement, in = GradSlot(x),
       result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        Tensor kept = saved.get(bctx);
        Tensor dx = dy.unique() ? dy : bctx.allocate(dy.dtype(), dy.shape(), "gradients");
        auto sink = [&](const Param& param) {
          if (!param.trains) return GradSink{};
          return bctx.grads.sink(param, gradient_placement(param, outer));
        };
        GradSink dp = sink(*params.alpha_p), dn = sink(*params.alpha_n);
        {
          Leases leases(bctx, params);
          bctx.kernels.activation.xielu_backward(bctx.stream, {.dy = dy,
                                                               .x = kept,
                                                               .dx = dx,
                                                               .coefficients = leases.views(),
                                                               .dalpha_p = dp.view,
                                                               .dalpha_n = dn.view,
                                                               .p_beta = dp.beta,
                                                               .n_beta = dn.beta});
        }
        if (params.alpha_p->trains) bctx.grads.done(*params.alpha_p, std::move(dp));
        if (params.alpha_n->trains) bctx.grads.done(*params.alpha_n, std::move(dn));
        back.add(in, std::move(dx));
      });
  return out;
}

}  // namespace bev
