#include "ops/token_log_probs.h"

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "ops/head_chunks.h"

namespace bev {

namespace {

constexpr const char* kOp = "token_log_probs";

CrossEntropyPass make_pass(Context& ctx, Tensor hidden, const Placement& placement,
                           const Tensor& targets, std::int64_t passes) {
  Tensor token_loss = ctx.allocate(ctx.wide(), {hidden.shape()[0]}, "loss");
  return {.op = kOp,
          .hidden = std::move(hidden),
          .placement = placement,
          .targets = targets,
          .token_loss = std::move(token_loss),
          .passes = passes};
}

// Recomputes the logits. wgrad runs at once rather than deferred by Backward::deferred_wgrad: it
// needs the gradient of the logits, which would have to be saved or computed twice.
void backward_again(Backward& back, const HeadSpec& spec, const Saved& hidden,
                    const Tensor& targets, const GradSlot& in, const Tensor& dy) {
  Context& ctx = back.ctx;
  CrossEntropyPass pass = make_pass(ctx, hidden.get(ctx), in.placement, targets, 2);
  pass.with_gradient = true;
  if (in.wanted()) pass.dhidden = ctx.allocate(ctx.dtype, pass.hidden.shape(), "gradients");
  // log p is minus the cross entropy.
  pass.weights = ctx.allocate(ctx.wide(), dy.shape(), "gradients");
  ctx.kernels.elementwise.axpby(ctx.stream, -1, dy, 0, pass.weights);
  cross_entropy(ctx, spec, pass);
  if (in.wanted()) back.add(in, std::move(pass.dhidden), in.placement.dual());
}

}  // namespace

Var token_log_probs(Context& ctx, const Var& hidden, const Tensor& targets, const HeadSpec& spec,
                    const TopTokens* top) {
  OpScope scope(ctx, kOp);
  check_head(hidden, spec);
  BEV_CHECK(targets.numel() == hidden.shape()[0], "token_log_probs: ", targets.numel(),
            " targets for an input ", hidden.shape());
  bool wanted = ctx.tape != nullptr &&
                (hidden.tracked() || in_use(ctx, *spec.weight).trains || spec.bias != nullptr);
  CrossEntropyPass pass = make_pass(ctx, hidden.tensor, hidden.placement, targets, wanted ? 2 : 1);
  pass.top = top;
  cross_entropy(ctx, spec, pass);
  // Computed as 0 - loss, so that an ignored token gets 0 instead of -0.
  Tensor log_probs = ctx.allocate(ctx.wide(), pass.token_loss.shape(), "activations");
  ctx.kernels.fill(ctx.stream, log_probs, 0);
  ctx.kernels.elementwise.axpby(ctx.stream, -1, pass.token_loss, 1, log_probs);
  Placement placement = hidden.placement.with(Axis::kTp, PlaceState::kReplicated);
  Var out = make_output(ctx, kOp, std::move(log_probs), placement, wanted);
  if (!out.tracked()) return out;
  ctx.tape->record(kOp, ctx.layer,
                   [spec, targets, kept = Saved(hidden), in = GradSlot(hidden),
                    result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (!dy.empty()) backward_again(back, spec, kept, targets, in, dy);
                   });
  return out;
}

}  // namespace bev
