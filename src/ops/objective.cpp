#include "ops/objective.h"

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"

namespace bev {

Var sum_by_sample(Context& ctx, const Var& x, const SequenceLayout& layout) {
  OpScope scope(ctx, "sum_by_sample");
  BEV_CHECK(x.placement[Axis::kCp] == PlaceState::kShard0 &&
                x.placement[Axis::kTp] == PlaceState::kReplicated,
            ErrorKind::kInternal, "sum_by_sample: the input {", x.placement,
            "} must be shard(0) over cp and replicated over tp");
  BEV_CHECK(x.shape().ndim() == 1 && x.shape()[0] == layout.tokens, "sum_by_sample: input ",
            x.shape(), " for ", layout.tokens, " tokens");
  std::int64_t tokens = layout.tokens, samples = layout.sample_count;
  Tensor sums = ctx.allocate(x.dtype(), {samples}, "activations");
  ctx.kernels.elementwise.segment_sum(ctx.stream,
                                      {x.tensor, layout.batch_samples.as<std::int32_t>(), sums});
  ctx.mesh.cp().all_reduce(sums, Reduction::kSum, "sums by sample").wait();
  // The gradient of the sum, replicated over cp, is the gradient of each of its terms.
  Placement placement = x.placement.with(Axis::kCp, PlaceState::kReplicated);
  Var out = make_output(ctx, "sum_by_sample", std::move(sums), placement, x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("sum_by_sample", ctx.layer,
                   [tokens, samples, index = layout.batch_samples, in = GradSlot(x),
                    result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Tensor dx = back.ctx.allocate(dy.dtype(), {tokens}, "gradients");
                     back.ctx.kernels.embedding.forward(
                         back.ctx.stream,
                         {index.as<std::int32_t>(), dy.view().reshape({samples, 1}),
                          dx.view().reshape({tokens, 1})});
                     back.add(in, std::move(dx));
                   });
  return out;
}

Var given_gradient(Context& ctx, const char* name, const Var& x, Tensor loss, Tensor dx) {
  OpScope scope(ctx, name);
  BEV_CHECK(x.placement == x.placement.dual(), ErrorKind::kInternal, name, ": the input {",
            x.placement, "} must be whole or cut over every axis");
  BEV_CHECK(loss.numel() == 1 && dx.shape() == x.shape() && dx.dtype() == x.dtype(), name,
            ": a loss ", loss.shape(), " and a gradient ", dx.shape(), " of ", name_of(dx.dtype()),
            " for an input ", x.shape(), " of ", name_of(x.dtype()));
  ctx.check(name, "gradient", dx);
  Var out = make_output(ctx, name, std::move(loss), x.placement, x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record(name, ctx.layer,
                   [dx = std::move(dx), in = GradSlot(x), result = GradSlot(out)](Backward& back) {
                     Tensor seed = back.take(result);
                     if (seed.empty()) return;
                     Tensor scaled = back.ctx.allocate(dx.dtype(), dx.shape(), "gradients");
                     back.ctx.kernels.elementwise.scale(back.ctx.stream, dx, seed, scaled);
                     back.add(in, std::move(scaled));
                   });
  return out;
}

}  // namespace bev
