#include "ops/recurrent/gated_norm.h"

#include <utility>

#include "autograd/op_scope.h"
#include "base/divide.h"
#include "base/error.h"
#include "kernels/recurrent.h"

namespace bev {

namespace {

struct NormPass {
  GatedNormSpec spec;
  std::int64_t first_column = 0, groups = 0;
  bool across_ranks = false;
  Tensor squares = {};

  GatedNormShape shape() const {
    return {.group_width = spec.weight != nullptr ? spec.group_width : 0,
            .first_column = first_column,
            .gate_first = spec.gate_first,
            .epsilon = spec.epsilon,
            .offset = spec.offset};
  }

  // Sums of the groups of every row, over all ranks.
  Tensor sums(Context& ctx, GatedNormSumsArgs args, const char* label) const {
    Tensor sums = ctx.allocate(ctx.wide(), {args.x.shape[0], groups}, "activations");
    args.shape = shape();
    args.sums = sums;
    ctx.kernels.recurrent.norm_sums(ctx.stream, args);
    if (across_ranks) ctx.mesh.tp().all_reduce(sums, Reduction::kSum, label).wait();
    return sums;
  }
  Tensor forward(Context& ctx, const Tensor& x, const Tensor& z, const char* tag) const {
    Tensor y = ctx.allocate(x.dtype(), x.shape(), tag);
    WeightLease w = spec.weight != nullptr ? ctx.weights.use(*spec.weight) : WeightLease{};
    ctx.kernels.recurrent.norm_forward(
        ctx.stream,
        {.shape = shape(), .x = x, .z = z, .weight = w.view, .squares = squares, .y = y});
    return y;
  }
};

// How the columns of this rank lie in groups.
NormPass make_pass(const Context& ctx, const GatedNormSpec& spec, std::int64_t columns) {
  NormPass pass{.spec = spec};
  if (spec.weight == nullptr) return pass;
  BEV_CHECK(spec.group_width > 0, ErrorKind::kInternal, "gated_norm ", spec.weight->name,
            ": groups of no columns");
  const Group& tp = ctx.mesh.tp();
  pass.across_ranks = tp.size() > 1 && columns % spec.group_width != 0;
  if (!pass.across_ranks) {
    pass.groups = columns / spec.group_width;
  } else {
    pass.first_column = tp.rank() * columns;
    pass.groups = ceil_div(tp.size() * columns, spec.group_width);
  }
  const std::int64_t weights = spec.weight->local[0];
  BEV_CHECK((weights == columns || weights == spec.group_width) &&
                (pass.across_ranks || columns % spec.group_width == 0),
            "gated_norm ", spec.weight->name, ": ", columns, " columns in groups of ",
            spec.group_width, ", ", weights, " weights");
  return pass;
}

class NormRecipe final : public Recipe {
 public:
  NormRecipe(const NormPass& pass, Saved x, Saved z)
      : pass_(pass), x_(std::move(x)), z_(std::move(z)) {}
  Tensor make(Context& ctx) const override {
    return pass_.forward(ctx, x_.get(ctx), z_.get(ctx), "recomputed");
  }

 private:
  NormPass pass_;
  Saved x_, z_;
};

struct NormGradients {
  Tensor dx, dz;
};

NormGradients norm_backward(Context& ctx, const NormPass& pass, const Placement& placement,
                            const Tensor& x, const Tensor& z, const Tensor& dy) {
  const Param* weight = pass.spec.weight;
  const bool dw_wanted = weight != nullptr && weight->trains;
  GradSink dw =
      dw_wanted ? ctx.grads.sink(*weight, gradient_placement(*weight, placement)) : GradSink{};
  NormGradients to{dy.unique() ? dy : ctx.allocate(dy.dtype(), dy.shape(), "gradients"),
                   ctx.allocate(dy.dtype(), dy.shape(), "gradients")};
  {
    WeightLease w = weight != nullptr ? ctx.weights.use(*weight) : WeightLease{};
    Tensor products;
    if (weight != nullptr) {
      products = pass.sums(ctx, {.shape = {}, .x = x, .z = z, .dy = dy, .weight = w.view},
                           "gated norm gradient");
    }
    ctx.kernels.recurrent.norm_backward(ctx.stream, {.shape = pass.shape(),
                                                     .dy = dy,
                                                     .x = x,
                                                     .z = z,
                                                     .weight = w.view,
                                                     .squares = pass.squares,
                                                     .products = products,
                                                     .dx = to.dx,
                                                     .dz = to.dz,
                                                     .dweight = dw.view,
                                                     .beta = dw.beta});
  }
  if (dw_wanted) ctx.grads.done(*weight, std::move(dw));
  return to;
}

}  // namespace

Var gated_norm(Context& ctx, const Var& x, const Var& z, const GatedNormSpec& given) {
  OpScope scope(ctx, "gated_norm");
  GatedNormSpec spec = given;
  if (given.weight != nullptr) spec.weight = &in_use(ctx, *given.weight);
  BEV_CHECK(x.shape().ndim() == 2 && x.shape() == z.shape() && x.placement == z.placement,
            "gated_norm: ", x.shape(), " {", x.placement, "} and gate ", z.shape(), " {",
            z.placement, "}");
  NormPass pass = make_pass(ctx, spec, x.shape()[1]);
  if (spec.weight != nullptr) {
    pass.squares =
        pass.sums(ctx, {.shape = {}, .x = x.tensor, .z = z.tensor}, "gated norm squares");
  }
  const bool trains = spec.weight != nullptr && spec.weight->trains;
  Var out = make_output(ctx, "gated_norm", pass.forward(ctx, x.tensor, z.tensor, "activations"),
                        x.placement, x.tracked() || z.tracked() || trains);
  if (!out.tracked()) return out;
  if (spec.regenerate) out.recipe = make_recipe<NormRecipe>(ctx, pass, Saved(x), Saved(z));
  ctx.tape->record(
      "gated_norm", ctx.layer,
      [pass, kept_x = Saved(x), kept_z = Saved(z), outer = x.placement, to_x = GradSlot(x),
       to_z = GradSlot(z), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        NormGradients d =
            norm_backward(back.ctx, pass, outer, kept_x.get(back.ctx), kept_z.get(back.ctx), dy);
        back.add(to_x, std::move(d.dx));
        back.add(to_z, std::move(d.dz));
      });
  return out;
}

}  // namespace bev
