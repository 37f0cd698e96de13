#include "ops/label_loss.h"

#include <utility>

#include "autograd/op_scope.h"
#include "kernels/loss.h"
#include "ops/converted.h"
#include "ops/objective.h"

namespace bev {

LossResult label_loss(Context& ctx, const Var& logits, const LossTargets& targets) {
  const std::int64_t rows = logits.shape()[0];
  const bool wanted = ctx.tape != nullptr && logits.tracked();
  LossResult result;
  result.token_loss = ctx.allocate(ctx.wide(), {rows}, "loss");
  // Overwritten by the gradient.
  Tensor copy = ctx.allocate(ctx.wide(), logits.shape(), "logits");
  ctx.kernels.cast(ctx.stream, logits.tensor, copy);
  if (rows > 0) {
    ctx.kernels.loss.whole(ctx.stream, {.chunk = {copy, targets.targets.as<std::int32_t>()},
                                        .weights = targets.weights,
                                        .loss_factor = &ctx.step->loss_factor,
                                        .token_loss = result.token_loss,
                                        .with_gradient = wanted});
  }
  ctx.check("label_loss", "losses", result.token_loss);
  Tensor scalar = ctx.allocate(ctx.wide(), {1}, "loss");
  ctx.kernels.fill(ctx.stream, scalar, 0);
  result.loss = given_gradient(ctx, "label_loss", logits, std::move(scalar),
                               converted(ctx, copy, logits.dtype(), "gradients"));
  return result;
}

}  // namespace bev
