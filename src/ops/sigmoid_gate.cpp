#include "ops/sigmoid_gate.h"

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/activation.h"

namespace bev {

namespace {

Tensor gated(Context& ctx, const Tensor& x, const Tensor& gate, const char* tag) {
  Tensor y = ctx.allocate(x.dtype(), x.shape(), tag);
  ctx.kernels.activation.sigmoid_gate(ctx.stream, {.x = x, .gate = gate, .y = y});
  return y;
}

// Computes the product again from its factors, which are saved anyway.
class GateRecipe final : public Recipe {
 public:
  GateRecipe(Saved x, Saved gate) : x_(std::move(x)), gate_(std::move(gate)) {}
  Tensor make(Context& ctx) const override {
    return gated(ctx, x_.get(ctx), gate_.get(ctx), "recomputed");
  }

 private:
  Saved x_, gate_;
};

}  // namespace

Var sigmoid_gate(Context& ctx, const Var& x, const Var& gate) {
  OpScope scope(ctx, "sigmoid_gate");
  BEV_CHECK(x.shape() == gate.shape() && x.placement == gate.placement, ErrorKind::kInternal,
            "sigmoid_gate: ", x.shape(), " {", x.placement, "} with a gate ", gate.shape(), " {",
            gate.placement, "}");
  Var out = make_output(ctx, "sigmoid_gate", gated(ctx, x.tensor, gate.tensor, "activations"),
                        x.placement, x.tracked() || gate.tracked());
  if (!out.tracked()) return out;
  out.recipe = make_recipe<GateRecipe>(ctx, Saved(x), Saved(gate));
  ctx.tape->record("sigmoid_gate", ctx.layer,
                   [kept_x = Saved(x), kept_gate = Saved(gate), to_x = GradSlot(x),
                    to_gate = GradSlot(gate), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Context& bctx = back.ctx;
                     Tensor dx =
                         dy.unique() ? dy : bctx.allocate(dy.dtype(), dy.shape(), "gradients");
                     Tensor dgate = bctx.allocate(dy.dtype(), dy.shape(), "gradients");
                     Tensor in = kept_x.get(bctx), gates = kept_gate.get(bctx);
                     bctx.kernels.activation.sigmoid_gate_backward(
                         bctx.stream, {.dy = dy, .x = in, .gate = gates, .dx = dx, .dgate = dgate});
                     if (to_x.wanted()) back.add(to_x, std::move(dx));
                     if (to_gate.wanted()) back.add(to_gate, std::move(dgate));
                   });
  return out;
}

}  // namespace bev
