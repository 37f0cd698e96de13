// Activation of experts, fused with the multiplication of each row by its router probability.
#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/activation.h"
#include "ops/moe/moe.h"

namespace bev {

namespace {

Tensor activated(Context& ctx, const ActivationSpec& spec, const Tensor& x, const Tensor& probs,
                 const ExpertRows& rows, const char* tag) {
  Tensor y = ctx.allocate(x.dtype(), activated_shape(spec, x.shape()), tag);
  ActivationForwardArgs args{x, y, spec.kind, spec.gated, spec.limits};
  args.weights = {probs, rows.order.as<std::int32_t>()};
  ctx.kernels.activation.forward(ctx.stream, args);
  return y;
}

class WeightedActivationRecipe final : public Recipe {
 public:
  WeightedActivationRecipe(const ActivationSpec& spec, Saved x, Saved probs, ExpertRows rows)
      : spec_(spec), x_(std::move(x)), probs_(std::move(probs)), rows_(std::move(rows)) {}
  Tensor make(Context& ctx) const override {
    return activated(ctx, spec_, x_.get(ctx), probs_.get(ctx), rows_, "recomputed");
  }

 private:
  ActivationSpec spec_;
  Saved x_, probs_;
  ExpertRows rows_;
};

}  // namespace

Var weighted_activation(Context& ctx, const Var& x, const ActivationSpec& spec, const Var& probs,
                        const ExpertRows& rows) {
  OpScope scope(ctx, "weighed_activation");
  BEV_CHECK(x.shape()[0] == rows.count() && probs.tensor.numel() == rows.place.numel() &&
                (!spec.gated || x.shape()[1] % 2 == 0),
            "weighed_activation: input ", x.shape(), ", probabilities ", probs.shape(), " for ",
            rows.count(), " rows");
  Var out = make_output(ctx, "weighed_activation",
                        activated(ctx, spec, x.tensor, probs.tensor, rows, "activations"),
                        x.placement, x.tracked() || probs.tracked());
  if (!out.tracked()) return out;
  if (spec.regenerate) {
    out.recipe =
        ctx.tape->make_recipe<WeightedActivationRecipe>(spec, Saved(x), Saved(probs), rows);
  }
  ctx.tape->record("weighed_activation", ctx.layer,
                   [spec, rows, saved = Saved(x), saved_probs = Saved(probs), in = GradSlot(x),
                    weights = GradSlot(probs), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Context& bctx = back.ctx;
                     Tensor kept = saved.get(bctx), factors = saved_probs.get(bctx);
                     Tensor dx = bctx.allocate(kept.dtype(), kept.shape(), "gradients");
                     Tensor dprobs = bctx.allocate(factors.dtype(), factors.shape(), "gradients");
                     ActivationBackwardArgs args{dy, kept, dx, spec.kind, spec.gated, spec.limits};
                     args.weights = {factors, rows.order.as<std::int32_t>()};
                     args.dprobs = dprobs;
                     bctx.kernels.activation.backward(bctx.stream, args);
                     back.add(in, std::move(dx));
                     back.add(weights, std::move(dprobs));
                   });
  return out;
}

}  // namespace bev
