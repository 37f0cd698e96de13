#include "ops/moe/moe.h"

#include "autograd/op_scope.h"
#include "autograd/quantize.h"
#include "base/error.h"
#include "kernels/moe.h"

namespace bev {

namespace {

class PermuteRecipe final : public Recipe {
 public:
  PermuteRecipe(Saved x, ExpertRows rows) : x_(std::move(x)), rows_(std::move(rows)) {}
  Tensor make(Context& ctx) const override {
    return permute_rows(ctx, x_.get(ctx), rows_, "recomputed");
  }
  // Fused: gathers the rows while it quantises them.
  Quantized quantize(Context& ctx, QuantizeRequest request) const override {
    if (!request.groups.used()) return Recipe::quantize(ctx, request);
    Tensor x = x_.get(ctx);
    request.x = x;
    request.groups.order = rows_.order.as<std::int32_t>();
    request.groups.place = rows_.place.as<std::int32_t>();
    request.groups.topk = rows_.topk;
    return bev::quantize({ctx.kernels, ctx.stream, ctx.arena}, request);
  }

 private:
  Saved x_;
  ExpertRows rows_;
};

Tensor scaled_by_probs(Context& ctx, const Tensor& x, const Tensor& probs, const ExpertRows& rows,
                       const char* tag) {
  Tensor out = ctx.allocate(x.dtype(), x.shape(), tag);
  ctx.kernels.moe.scale_rows(ctx.stream, {x, out, probs, rows.order.as<std::int32_t>()});
  return out;
}

class ScaleByProbsRecipe final : public Recipe {
 public:
  ScaleByProbsRecipe(Saved x, Saved probs, ExpertRows rows)
      : x_(std::move(x)), probs_(std::move(probs)), rows_(std::move(rows)) {}
  Tensor make(Context& ctx) const override {
    return scaled_by_probs(ctx, x_.get(ctx), probs_.get(ctx), rows_, "recomputed");
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

Var permute(Context& ctx, const Var& x, const ExpertRows& rows, bool unwritten) {
  OpScope scope(ctx, "permute");
  check_over_ep("permute", x, PlaceState::kCopied);
  // With a probe (non-finite checks) the result is materialised, so that it can be inspected.
  bool writes = !unwritten || ctx.probe != nullptr;
  Tensor gathered = writes ? permute_rows(ctx, x.tensor, rows, "activations")
                           : Tensor::unwritten(x.dtype(), {rows.count(), x.shape()[1]});
  Var out = make_output(ctx, "permute", std::move(gathered),
                        x.placement.with(Axis::kEp, PlaceState::kShard0), x.tracked());
  if (ctx.tape == nullptr && writes) return out;
  out.recipe = make_recipe<PermuteRecipe>(ctx, Saved(x), rows);
  if (!writes) out.source = out.recipe;
  if (!out.tracked()) return out;
  ctx.tape->record("permute", ctx.layer,
                   [rows, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     back.add(in, unpermute_rows(back.ctx, dy, rows, "gradients"));
                   });
  return out;
}

Var unpermute(Context& ctx, const Var& x, const ExpertRows& rows, bool unwritten) {
  OpScope scope(ctx, "combine");
  BEV_CHECK(x.shape()[0] == rows.count(), "combine: input ", x.shape(), " for ", rows.count(),
            " rows");
  check_over_ep("combine", x, PlaceState::kShard0);
  Var out = make_output(ctx, "combine", unpermute_rows(ctx, x.tensor, rows, "activations"),
                        x.placement.with(Axis::kEp, PlaceState::kPartial), x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("combine", ctx.layer,
                   [rows, unwritten, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     if (!unwritten || back.ctx.probe != nullptr) {
                       return back.add(in, permute_rows(back.ctx, dy, rows, "gradients"));
                     }
                     Tensor gathered = Tensor::unwritten(dy.dtype(), {rows.count(), dy.shape()[1]});
                     auto recipe = back.make_recipe<PermuteRecipe>(Saved(std::move(dy)), rows);
                     back.add(in, Value(std::move(gathered), std::move(recipe), {}));
                   });
  return out;
}

Var scale_by_probs(Context& ctx, const Var& x, const Var& probs, const ExpertRows& rows) {
  OpScope scope(ctx, "weigh");
  BEV_CHECK(x.shape()[0] == rows.count() && probs.tensor.numel() == rows.place.numel(),
            "weigh: input ", x.shape(), ", probabilities ", probs.shape(), " for ", rows.count(),
            " rows");
  Var out =
      make_output(ctx, "weigh", scaled_by_probs(ctx, x.tensor, probs.tensor, rows, "activations"),
                  x.placement, x.tracked() || probs.tracked());
  if (!out.tracked()) return out;
  out.recipe = ctx.tape->make_recipe<ScaleByProbsRecipe>(Saved(x), Saved(probs), rows);
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
        bctx.kernels.moe.scale_rows_backward(bctx.stream, {.dy = dy,
                                                           .x = kept.get(bctx),
                                                           .probs = factor,
                                                           .dx = dx,
                                                           .dprobs = dprobs,
                                                           .order = rows.order.as<std::int32_t>(),
                                                           .place = rows.place.as<std::int32_t>()});
        back.add(in, std::move(dx));
        back.add(weights, std::move(dprobs));
      });
  return out;
}

}  // namespace bev
