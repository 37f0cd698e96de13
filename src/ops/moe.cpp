#include "ops/moe.h"

#include "autograd/op_scope.h"
#include "base/error.h"
#include "ops/linear.h"

namespace bev {

namespace {

class PermuteRecipe final : public Recipe {
 public:
  PermuteRecipe(Saved x, ExpertRows rows) : x_(std::move(x)), rows_(std::move(rows)) {}
  Tensor make(Context& ctx) const override {
    return gather_rows(ctx, x_.get(ctx), rows_, "recomputed");
  }

 private:
  Saved x_;
  ExpertRows rows_;
};

Tensor weighed(Context& ctx, const Tensor& x, const Tensor& probs, const ExpertRows& rows,
               const char* tag) {
  Tensor out = ctx.allocate(x.dtype(), x.shape(), tag);
  ctx.kernels.moe.weigh_rows(ctx.stream, {x, out, probs, rows.order.as<std::int32_t>()});
  return out;
}

class WeighRecipe final : public Recipe {
 public:
  WeighRecipe(Saved x, Saved probs, ExpertRows rows)
      : x_(std::move(x)), probs_(std::move(probs)), rows_(std::move(rows)) {}
  Tensor make(Context& ctx) const override {
    return weighed(ctx, x_.get(ctx), probs_.get(ctx), rows_, "recomputed");
  }

 private:
  Saved x_, probs_;
  ExpertRows rows_;
};

void check_over_ep(const char* op, const Var& x, PlaceState wanted) {
  BEV_CHECK(x.placement[Axis::kEp] == wanted, ErrorKind::kInternal, op, ": the input {",
            x.placement, "} must be ", wanted == PlaceState::kCopied ? "copied" : "shard(0)",
            " over ep");
}

}  // namespace

Var permute(Context& ctx, const Var& x, const ExpertRows& rows) {
  OpScope scope(ctx, "permute");
  check_over_ep("permute", x, PlaceState::kCopied);
  Var out = make_output(ctx, "permute", gather_rows(ctx, x.tensor, rows, "activations"),
                        x.placement.with(Axis::kEp, PlaceState::kShard0), x.tracked());
  if (ctx.tape == nullptr) return out;
  out.recipe = ctx.tape->make_recipe<PermuteRecipe>(Saved(x), rows);
  if (!out.tracked()) return out;
  ctx.tape->record("permute", ctx.layer,
                   [rows, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     back.add(in, sum_rows(back.ctx, dy, rows, "gradients"));
                   });
  return out;
}

Var combine(Context& ctx, const Var& x, const ExpertRows& rows) {
  OpScope scope(ctx, "combine");
  BEV_CHECK(x.shape()[0] == rows.count(), "combine: input ", x.shape(), " for ", rows.count(),
            " rows");
  check_over_ep("combine", x, PlaceState::kShard0);
  Var out = make_output(ctx, "combine", sum_rows(ctx, x.tensor, rows, "activations"),
                        x.placement.with(Axis::kEp, PlaceState::kPartial), x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("combine", ctx.layer,
                   [rows, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     back.add(in, gather_rows(back.ctx, dy, rows, "gradients"));
                   });
  return out;
}

Var weigh(Context& ctx, const Var& x, const Var& probs, const ExpertRows& rows) {
  OpScope scope(ctx, "weigh");
  BEV_CHECK(x.shape()[0] == rows.count() && probs.tensor.numel() == rows.place.numel(),
            "weigh: input ", x.shape(), ", probabilities ", probs.shape(), " for ", rows.count(),
            " rows");
  Var out = make_output(ctx, "weigh", weighed(ctx, x.tensor, probs.tensor, rows, "activations"),
                        x.placement, x.tracked() || probs.tracked());
  if (!out.tracked()) return out;
  out.recipe = ctx.tape->make_recipe<WeighRecipe>(Saved(x), Saved(probs), rows);
  ctx.tape->record(
      "weigh", ctx.layer,
      [rows, kept = Saved(x), kept_probs = Saved(probs), in = GradSlot(x),
       weights = GradSlot(probs), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        Tensor factor = kept_probs.get(bctx);
        Tensor dx = dy.unique() ? dy : bctx.allocate(dy.dtype(), dy.shape(), "gradients");
        Tensor dprobs = bctx.allocate(factor.dtype(), factor.shape(), "gradients");
        bctx.kernels.moe.weigh_rows_backward(
            bctx.stream, {dy, kept.get(bctx), factor, dx, dprobs, rows.order.as<std::int32_t>(),
                          rows.place.as<std::int32_t>()});
        back.add(in, std::move(dx));
        back.add(weights, std::move(dprobs));
      });
  return out;
}

namespace {
Placement grouped_placement(const Var& x, const Param& weight) {
  PlaceState state = x.placement[Axis::kEtp];
  bool column = weight.split.dim == 1;
  BEV_CHECK(column || weight.split.dim == 2, ErrorKind::kInternal, "grouped_linear ", weight.name,
            ": the weight must be split over dim 1 or 2");
  BEV_CHECK(state == (column ? PlaceState::kCopied : PlaceState::kShard1), ErrorKind::kInternal,
            "grouped_linear ", weight.name, ": the input {", x.placement, "} must be ",
            column ? "copied" : "shard(1)", " over etp");
  return x.placement.with(Axis::kEtp, column ? PlaceState::kShard1 : PlaceState::kPartial);
}

// dy [R, O] of a use of the weights and biases.
struct GroupedGradients {
  const Param *weight, *bias;
  Placement weight_placement, bias_placement;
  Saved x;
  Tensor offsets;

  void add(Context& ctx, const Tensor& dy) const {
    GroupedArgs args;
    args.y = dy;
    args.offsets = offsets.as<std::int32_t>();
    if (bias != nullptr && bias->trains) {
      GradSink sink = ctx.grads.sink(*bias, bias_placement);
      args.bias = sink.view;
      args.beta = sink.beta;
      ctx.kernels.moe.grouped_weight(ctx.stream, args);
      ctx.grads.done(*bias, std::move(sink));
    }
    if (!weight->trains) return;
    Tensor kept = x.get(ctx);
    GradSink sink = ctx.grads.sink(*weight, weight_placement);
    args.x = kept;
    args.w = sink.view;
    args.bias = {};
    args.beta = sink.beta;
    ctx.kernels.moe.grouped_weight(ctx.stream, args);
    ctx.grads.done(*weight, std::move(sink));
  }
};
}  // namespace

Var grouped_linear(Context& ctx, const Var& x, const ExpertRows& rows, const Param& weight,
                   const Param* bias) {
  OpScope scope(ctx, "grouped_linear");
  BEV_CHECK(x.shape()[1] == weight.local[2] && x.shape()[0] == rows.count() &&
                weight.local[0] + 1 == rows.offsets.numel(),
            "grouped_linear ", weight.name, ": input ", x.shape(), " for weights ", weight.local);
  Placement placement = grouped_placement(x, weight);
  Tensor y = ctx.allocate(ctx.dtype, {x.shape()[0], weight.local[1]}, "activations");
  {
    WeightLease w = ctx.weights.use(weight);
    WeightLease b = bias ? ctx.weights.use(*bias) : WeightLease{};
    ctx.kernels.moe.grouped(ctx.stream,
                            {x.tensor, w.view, y, b.view, rows.offsets.as<std::int32_t>(), 0});
  }
  bool trains = weight.trains || (bias && bias->trains);
  Var out = make_output(ctx, "grouped_linear", std::move(y), placement, x.tracked() || trains);
  if (!out.tracked()) return out;
  GroupedGradients gradients{&weight,
                             bias,
                             gradient_placement(weight, x.placement),
                             bias ? gradient_placement(*bias, x.placement) : Placement(),
                             weight.trains ? Saved(x) : Saved(),
                             rows.offsets};
  ctx.tape->record(
      "grouped_linear", ctx.layer,
      [gradients, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        const Param& w = *gradients.weight;
        if (in.wanted()) {
          Tensor dx = bctx.allocate(dy.dtype(), {dy.shape()[0], w.local[2]}, "gradients");
          WeightLease lease = bctx.weights.use(w);
          bctx.kernels.moe.grouped_input(
              bctx.stream, {dx, lease.view, dy, {}, gradients.offsets.as<std::int32_t>(), 0});
          back.add(in, std::move(dx));
        }
        back.weight_work([gradients, dy](Context& wctx) { gradients.add(wctx, dy); });
      });
  return out;
}

}  // namespace bev
