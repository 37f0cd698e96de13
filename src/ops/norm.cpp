#include "ops/norm.h"

#include "autograd/op_scope.h"
#include "autograd/quantize.h"
#include "base/error.h"
#include "kernels/norm.h"
#include "ops/amax.h"
#include "ops/converted.h"

namespace bev {

namespace {

struct NormKept {
  Saved s;
  Tensor mean, rstd;
};

// Recomputes the normalised tensor from the input and statistics of the norm, which are saved
// anyway.
class NormRecipe : public Recipe {
 public:
  NormRecipe(const NormSpec& spec, NormKept kept) : spec_(spec), kept_(std::move(kept)) {}
  Tensor make(Context& ctx) const override {
    Tensor s = kept_.s.get(ctx), y = ctx.allocate(ctx.dtype, s.shape(), "recomputed");
    WeightLease w = ctx.weights.use(*spec_.weight);
    WeightLease b = spec_.bias ? ctx.weights.use(*spec_.bias) : WeightLease{};
    ctx.kernels.norm.forward(ctx.stream, args(s, y, w, b));
    return y;
  }
  Quantized quantize(Context& ctx, QuantizeRequest request) const override {
    Tensor s = kept_.s.get(ctx);
    // Fused quantisation reads and rounds one dtype.
    if (!request.takes_maker() || s.dtype() != ctx.dtype) return Recipe::quantize(ctx, request);
    Tensor y = Tensor::unwritten(s.dtype(), s.shape());
    WeightLease w = ctx.weights.use(*spec_.weight);
    WeightLease b = spec_.bias ? ctx.weights.use(*spec_.bias) : WeightLease{};
    NormForwardArgs norm = args(s, y, w, b);
    request.x = y;
    request.maker.norm = &norm;
    return bev::quantize({ctx.kernels, ctx.stream, ctx.arena}, request);
  }

 private:
  // The kernel recomputes the same statistics in place.
  NormForwardArgs args(const Tensor& s, const Tensor& y, const WeightLease& w,
                       const WeightLease& b) const {
    return {s, {}, {}, y, w.view, b.view, kept_.mean, kept_.rstd, spec_.epsilon, spec_.offset};
  }

  NormSpec spec_;
  NormKept kept_;
};

void check_norm(const Var& x, const NormSpec& spec) {
  BEV_CHECK(x.shape().ndim() == 2 && x.shape()[1] == spec.weight->local[0], "norm ",
            spec.weight->name, ": input ", x.shape(), " for a weight ", spec.weight->local);
  PlaceState state = x.placement[Axis::kTp];
  BEV_CHECK(state == PlaceState::kReplicated || state == PlaceState::kShard0, ErrorKind::kInternal,
            "norm ", spec.weight->name, ": the input {", x.placement, "} must be whole over tp");
}

// Input gradient of the norm plus `dsum`; weight gradients go to their sinks. dy may be empty.
Value norm_backward(Context& ctx, const NormSpec& spec, const NormKept& kept,
                    const Placement& placement, const Tensor& dy, Tensor dsum) {
  if (dy.empty()) return dsum;
  const Tensor s = kept.s.get(ctx);
  Tensor dx = dsum.unique() ? dsum : ctx.allocate(s.dtype(), s.shape(), "gradients");
  bool dw_wanted = spec.weight->trains, db_wanted = spec.bias && spec.bias->trains;
  GradSink dw = dw_wanted ? ctx.grads.sink(*spec.weight, placement) : GradSink{};
  GradSink db = db_wanted ? ctx.grads.sink(*spec.bias, placement) : GradSink{};
  BEV_CHECK(!dw_wanted || !db_wanted || dw.beta == db.beta, ErrorKind::kInternal, "norm ",
            spec.weight->name, ": weight and bias gradients accumulate differently");
  Tensor amax = spec.amax ? zero_amax(ctx) : Tensor();
  {
    WeightLease w = ctx.weights.use(*spec.weight);
    ctx.kernels.norm.backward(ctx.stream, {.dy = dy,
                                           .s = s,
                                           .dsum = dsum,
                                           .weight = w.view,
                                           .mean = kept.mean,
                                           .rstd = kept.rstd,
                                           .dx = dx,
                                           .dweight = dw.view,
                                           .dbias = db.view,
                                           .beta = dw_wanted ? dw.beta : db.beta,
                                           .offset = spec.offset,
                                           .amax = address_of(amax)});
  }
  if (dw_wanted) ctx.grads.done(*spec.weight, std::move(dw));
  if (db_wanted) ctx.grads.done(*spec.bias, std::move(db));
  return {std::move(dx), std::move(amax)};
}

bool trains(const NormSpec& spec) {
  return spec.weight->trains || (spec.bias && spec.bias->trains);
}

struct NormForward {
  Tensor sum, y, mean, rstd, amax;
};

NormForward norm_forward(Context& ctx, const NormSpec& spec, const Tensor& x,
                         const Tensor& residual) {
  NormForward out;
  std::int64_t rows = x.shape()[0];
  // With a probe (non-finite checks) the result is materialised, so that it can be inspected.
  bool writes = !spec.unwritten || ctx.probe != nullptr;
  out.y = writes ? ctx.allocate(ctx.dtype, x.shape(), "activations")
                 : Tensor::unwritten(ctx.dtype, x.shape());
  if (!residual.empty()) out.sum = ctx.allocate(residual.dtype(), x.shape(), "activations");
  if (spec.center) out.mean = ctx.allocate(ctx.wide(), {rows}, "activations");
  out.rstd = ctx.allocate(ctx.wide(), {rows}, "activations");
  WeightLease w = ctx.weights.use(*spec.weight);
  WeightLease b = spec.bias ? ctx.weights.use(*spec.bias) : WeightLease{};
  if (spec.amax) out.amax = zero_amax(ctx);
  ctx.kernels.norm.forward(ctx.stream, {.x = x,
                                        .residual = residual,
                                        .sum = out.sum,
                                        .y = out.y,
                                        .weight = w.view,
                                        .bias = b.view,
                                        .mean = out.mean,
                                        .rstd = out.rstd,
                                        .epsilon = spec.epsilon,
                                        .offset = spec.offset,
                                        .amax = address_of(out.amax)});
  return out;
}

// The gradient of a tensor of another dtype; its amax is not that of the rounded values.
Value narrowed(Context& ctx, const Value& gradient, Dtype dtype) {
  if (gradient.dtype() == dtype) return gradient;
  return converted(ctx, gradient.tensor, dtype, "gradients");
}

NormSpec in_use(const Context& ctx, NormSpec spec) {
  spec.weight = &in_use(ctx, *spec.weight);
  if (spec.bias != nullptr) spec.bias = &in_use(ctx, *spec.bias);
  return spec;
}

// Sets how consumers obtain y if it is recomputed or not materialised.
void set_recipes(Context& ctx, const NormSpec& spec, const NormKept& kept, Tensor amax, Var& y) {
  y.amax = std::move(amax);
  bool regenerates = spec.regenerate && y.tracked();
  if (!regenerates && !y.tensor.empty()) return;
  auto recipe = make_recipe<NormRecipe>(ctx, spec, kept);
  if (y.tensor.empty()) y.source = recipe;
  if (regenerates) y.recipe = std::move(recipe);
}

}  // namespace

Var norm(Context& ctx, const Var& x, const NormSpec& given) {
  OpScope scope(ctx, "norm");
  const NormSpec spec = in_use(ctx, given);
  check_norm(x, spec);
  NormForward out = norm_forward(ctx, spec, x.tensor, {});
  Var y = make_output(ctx, "norm", std::move(out.y), x.placement, x.tracked() || trains(spec));
  NormKept kept{Saved(x), std::move(out.mean), std::move(out.rstd)};
  set_recipes(ctx, spec, kept, std::move(out.amax), y);
  if (!y.tracked()) return y;
  ctx.tape->record("norm", ctx.layer,
                   [spec, kept, placement = gradient_placement(*spec.weight, x.placement),
                    in = GradSlot(x), result = GradSlot(y)](Backward& back) {
                     // The gradient that reached x on the residual path is added by the same
                     // kernel.
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Tensor past = back.take(in);
                     back.add(in,
                              norm_backward(back.ctx, spec, kept, placement, dy, std::move(past)));
                   });
  return y;
}

AddNorm add_norm(Context& ctx, const Var& x, const Var& residual, const NormSpec& given) {
  OpScope scope(ctx, "add_norm");
  const NormSpec spec = in_use(ctx, given);
  check_norm(x, spec);
  BEV_CHECK(x.shape() == residual.shape() && x.placement == residual.placement, "add_norm ",
            spec.weight->name, ": ", x.shape(), " {", x.placement, "} and residual ",
            residual.shape(), " {", residual.placement, "}");
  NormForward out = norm_forward(ctx, spec, x.tensor, residual.tensor);
  bool wanted = x.tracked() || residual.tracked() || trains(spec);
  AddNorm result{make_output(ctx, "add_norm", std::move(out.sum), x.placement, wanted),
                 make_output(ctx, "add_norm", std::move(out.y), x.placement, wanted)};
  NormKept kept{Saved(result.sum), std::move(out.mean), std::move(out.rstd)};
  set_recipes(ctx, spec, kept, std::move(out.amax), result.normalised);
  if (!result.sum.tracked()) return result;
  ctx.tape->record("add_norm", ctx.layer,
                   [spec, kept, placement = gradient_placement(*spec.weight, x.placement),
                    in = GradSlot(x), skip = GradSlot(residual), sum = GradSlot(result.sum),
                    normalised = GradSlot(result.normalised), dtype = x.dtype()](Backward& back) {
                     Tensor dsum = back.take(sum);
                     Value dx = norm_backward(back.ctx, spec, kept, placement,
                                              back.take(normalised), std::move(dsum));
                     if (dx.empty()) return;
                     if (in.wanted()) back.add(in, narrowed(back.ctx, dx, dtype));
                     back.add(skip, std::move(dx));
                   });
  return result;
}

namespace {
// The weight of a head norm; without one, zeros that an offset of 1 makes ones.
WeightLease head_weight(Context& ctx, const Param* weight, std::int64_t size) {
  if (weight != nullptr) return ctx.weights.use(*weight);
  Tensor zeros = ctx.allocate(ctx.dtype, {size}, "activations");
  ctx.kernels.fill(ctx.stream, zeros, 0);
  return {zeros, zeros};
}
}  // namespace

Var head_norm(Context& ctx, const Var& qkv, const HeadNormSpec& given) {
  OpScope scope(ctx, "head_norm");
  HeadNormSpec spec = given;
  if (given.q_weight != nullptr) spec.q_weight = &in_use(ctx, *given.q_weight);
  if (given.k_weight != nullptr) spec.k_weight = &in_use(ctx, *given.k_weight);
  std::int64_t rows = qkv.shape()[0], heads = spec.q_heads + spec.kv_heads;
  const double offset = spec.q_weight != nullptr ? spec.offset : 1;
  BEV_CHECK(qkv.shape()[1] == (heads + spec.kv_heads) * spec.head_size, "head_norm: input ",
            qkv.shape(), " for ", spec.q_heads, " + 2 x ", spec.kv_heads, " heads of ",
            spec.head_size);
  Tensor y = ctx.allocate(ctx.dtype, qkv.shape(), "activations");
  Tensor rstd = ctx.allocate(ctx.wide(), {rows, heads}, "activations");
  {
    WeightLease q = head_weight(ctx, spec.q_weight, spec.head_size);
    WeightLease k = head_weight(ctx, spec.k_weight, spec.head_size);
    ctx.kernels.norm.head_forward(ctx.stream, {.x = qkv.tensor,
                                               .y = y,
                                               .q_weight = q.view,
                                               .k_weight = k.view,
                                               .rstd = rstd,
                                               .q_heads = spec.q_heads,
                                               .kv_heads = spec.kv_heads,
                                               .head_size = spec.head_size,
                                               .epsilon = spec.epsilon,
                                               .offset = offset});
  }
  bool dq_wanted = spec.q_weight != nullptr && spec.q_weight->trains;
  bool dk_wanted = spec.k_weight != nullptr && spec.k_weight->trains;
  Var out = make_output(ctx, "head_norm", std::move(y), qkv.placement,
                        qkv.tracked() || dq_wanted || dk_wanted);
  if (!out.tracked()) return out;
  ctx.tape->record(
      "head_norm", ctx.layer,
      [spec, offset, dq_wanted, dk_wanted, saved = Saved(qkv), rstd, outer = qkv.placement,
       in = GradSlot(qkv), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        Tensor dx = dy.unique() ? dy : bctx.allocate(dy.dtype(), dy.shape(), "gradients");
        auto sink = [&](bool wanted, const Param* weight) {
          return wanted ? bctx.grads.sink(*weight, gradient_placement(*weight, outer)) : GradSink{};
        };
        GradSink dq = sink(dq_wanted, spec.q_weight), dk = sink(dk_wanted, spec.k_weight);
        {
          WeightLease q = head_weight(bctx, spec.q_weight, spec.head_size);
          WeightLease k = head_weight(bctx, spec.k_weight, spec.head_size);
          bctx.kernels.norm.head_backward(bctx.stream, {.dy = dy,
                                                        .x = saved.get(bctx),
                                                        .dx = dx,
                                                        .q_weight = q.view,
                                                        .k_weight = k.view,
                                                        .rstd = rstd,
                                                        .dq_weight = dq.view,
                                                        .dk_weight = dk.view,
                                                        .q_beta = dq.beta,
                                                        .k_beta = dk.beta,
                                                        .q_heads = spec.q_heads,
                                                        .kv_heads = spec.kv_heads,
                                                        .head_size = spec.head_size,
                                                        .offset = offset});
        }
        if (dq_wanted) bctx.grads.done(*spec.q_weight, std::move(dq));
        if (dk_wanted) bctx.grads.done(*spec.k_weight, std::move(dk));
        back.add(in, std::move(dx));
      });
  return out;
}

namespace {
WidthNormShape width_shape(const WidthNormSpec& spec) {
  return {.q_columns = spec.q_columns,
          .k_columns = spec.k_columns,
          .q_width = spec.q_weight->shape[0],
          .k_width = spec.k_weight->shape[0],
          .epsilon = spec.epsilon,
          .offset = spec.offset};
}

// The sums of every row over all tp ranks.
Tensor width_sums(Context& ctx, WidthNormSumsArgs args, const char* label) {
  Tensor sums = ctx.allocate(ctx.wide(), {args.x.shape[0], 2}, "activations");
  args.sums = sums;
  ctx.kernels.norm.width_sums(ctx.stream, args);
  Group& tp = ctx.mesh.tp();
  if (tp.size() > 1) tp.all_reduce(sums, Reduction::kSum, label).wait();
  return sums;
}
}  // namespace

Var width_norm(Context& ctx, const Var& qkv, const WidthNormSpec& given) {
  OpScope scope(ctx, "width_norm");
  WidthNormSpec spec = given;
  spec.q_weight = &in_use(ctx, *given.q_weight);
  spec.k_weight = &in_use(ctx, *given.k_weight);
  const Param &q_weight = *spec.q_weight, &k_weight = *spec.k_weight;
  BEV_CHECK(q_weight.local[0] == spec.q_columns && k_weight.local[0] == spec.k_columns &&
                qkv.shape()[1] > spec.q_columns + spec.k_columns,
            "width_norm ", q_weight.name, ": input ", qkv.shape(), " for ", spec.q_columns, " and ",
            spec.k_columns, " columns");
  const WidthNormShape shape = width_shape(spec);
  Tensor squares = width_sums(ctx, {.shape = shape, .x = qkv.tensor}, "qk norm squares");
  Tensor y = ctx.allocate(ctx.dtype, qkv.shape(), "activations");
  {
    WeightLease q = ctx.weights.use(q_weight), k = ctx.weights.use(k_weight);
    ctx.kernels.norm.width_forward(ctx.stream, {.shape = shape,
                                                .x = qkv.tensor,
                                                .y = y,
                                                .q_weight = q.view,
                                                .k_weight = k.view,
                                                .squares = squares});
  }
  Var out = make_output(ctx, "width_norm", std::move(y), qkv.placement,
                        qkv.tracked() || q_weight.trains || k_weight.trains);
  if (!out.tracked()) return out;
  ctx.tape->record(
      "width_norm", ctx.layer,
      [spec, shape, squares, saved = Saved(qkv), outer = qkv.placement, in = GradSlot(qkv),
       result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        Tensor x = saved.get(bctx);
        Tensor dx = dy.unique() ? dy : bctx.allocate(dy.dtype(), dy.shape(), "gradients");
        auto sink = [&](const Param& weight) {
          if (!weight.trains) return GradSink{};
          return bctx.grads.sink(weight, gradient_placement(weight, outer));
        };
        GradSink dq = sink(*spec.q_weight), dk = sink(*spec.k_weight);
        {
          WeightLease q = bctx.weights.use(*spec.q_weight);
          WeightLease k = bctx.weights.use(*spec.k_weight);
          Tensor products = width_sums(bctx, {shape, x, dy, q.view, k.view}, "qk norm gradient");
          bctx.kernels.norm.width_backward(bctx.stream, {.shape = shape,
                                                         .dy = dy,
                                                         .x = x,
                                                         .dx = dx,
                                                         .q_weight = q.view,
                                                         .k_weight = k.view,
                                                         .squares = squares,
                                                         .products = products,
                                                         .dq_weight = dq.view,
                                                         .dk_weight = dk.view,
                                                         .q_beta = dq.beta,
                                                         .k_beta = dk.beta});
        }
        if (spec.q_weight->trains) bctx.grads.done(*spec.q_weight, std::move(dq));
        if (spec.k_weight->trains) bctx.grads.done(*spec.k_weight, std::move(dk));
        back.add(in, std::move(dx));
      });
  return out;
}

}  // namespace bev
