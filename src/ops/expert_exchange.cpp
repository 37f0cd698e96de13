#include "ops/expert_exchange.h"

#include "autograd/op_scope.h"
#include "base/error.h"

namespace bev {

namespace {

// What is exchanged: nothing, sums, or tokens.
struct Exchange {
  Group* group;
  bool own_tokens;         // each rank has its own
  std::int64_t rows, all;  // of this rank, and inside
};

Exchange exchange_of(const Context& ctx, const Placement& placement, const SequenceLayout& layout) {
  const MeshShape& mesh = ctx.mesh.shape();
  PlaceState state = placement[Axis::kTp];
  BEV_CHECK(state == PlaceState::kReplicated || state == PlaceState::kShard0, ErrorKind::kInternal,
            "experts: the input {", placement, "} must be whole or split over tokens");
  Exchange out{&ctx.mesh.group(MeshGroup::kExperts), mesh.tp == 1 || state == PlaceState::kShard0,
               token_rows(ctx, layout, placement).size(), layout.tokens};
  BEV_CHECK(out.own_tokens || (mesh.ep == 1 && mesh.etp == mesh.tp), ErrorKind::kInternal,
            "experts: ep ", mesh.ep, " and etp ", mesh.etp, " with tp ", mesh.tp,
            " need sequence parallelism");
  if (!out.own_tokens) return out;
  out.all = 0;
  for (std::size_t i = 0; i < layout.expert_tokens.size(); ++i) {
    std::int64_t tokens = layout.expert_tokens[i];
    std::int64_t tp = coordinate_of(mesh, out.group->members()[i]).tp;
    out.all += state == PlaceState::kShard0 ? shard_range(tokens, mesh.tp, tp).size() : tokens;
  }
  return out;
}

Tensor gathered(Context& ctx, const Tensor& x, const Exchange& exchange, const char* label) {
  if (!exchange.own_tokens || exchange.group->size() == 1) return x;
  Shape shape = x.shape();
  shape[0] = exchange.all;
  Tensor all = ctx.allocate(x.dtype(), shape, "dispatched tokens");
  exchange.group->all_gather(x, all, label).wait();
  return all;
}

// x is not kept by its producer.
Tensor summed(Context& ctx, Tensor x, const Exchange& exchange, const char* label) {
  if (exchange.group->size() == 1) return x;
  if (!exchange.own_tokens) {
    if (!x.unique()) {
      Tensor copy = ctx.allocate(x.dtype(), x.shape(), "activations");
      ctx.kernels.elementwise.cast(ctx.stream, x, copy);
      x = std::move(copy);
    }
    exchange.group->all_reduce(x, Reduction::kSum, label).wait();
    return x;
  }
  Shape shape = x.shape();
  shape[0] = exchange.rows;
  Tensor own = ctx.allocate(x.dtype(), shape, "activations");
  exchange.group->reduce_scatter(x, own, label).wait();
  return own;
}

}  // namespace

Placement expert_placement(PlaceState etp, PlaceState ep) {
  return Placement()
      .with(Axis::kEdp, PlaceState::kShard0)
      .with(Axis::kEtp, etp)
      .with(Axis::kEp, ep);
}

Tensor gather_for_experts(Context& ctx, const Tensor& x, const Placement& placement,
                          const SequenceLayout& layout) {
  return gathered(ctx, x, exchange_of(ctx, placement, layout), "routing");
}

Var enter_experts(Context& ctx, const Var& x, const SequenceLayout& layout) {
  OpScope scope(ctx, "enter_experts");
  Exchange exchange = exchange_of(ctx, x.placement, layout);
  Var y = make_output(ctx, "enter_experts", gathered(ctx, x.tensor, exchange, "tokens for experts"),
                      expert_placement(PlaceState::kCopied, PlaceState::kCopied), x.tracked());
  if (!y.tracked()) return y;
  if (!exchange.own_tokens || exchange.group->size() == 1) y.recipe = x.recipe;
  ctx.tape->record("enter_experts", ctx.layer,
                   [exchange, in = GradSlot(x), out = GradSlot(y)](Backward& back) {
                     Tensor dy = back.take(out);
                     if (dy.empty()) return;
                     back.add(in, summed(back.ctx, std::move(dy), exchange, "expert gradients"));
                   });
  return y;
}

Var leave_experts(Context& ctx, const Var& x, const Placement& placement,
                  const SequenceLayout& layout) {
  OpScope scope(ctx, "leave_experts");
  BEV_CHECK(x.placement == expert_placement(PlaceState::kPartial, PlaceState::kPartial),
            ErrorKind::kInternal, "leave_experts: the input {", x.placement,
            "} must be a partial sum over etp and ep");
  Exchange exchange = exchange_of(ctx, placement, layout);
  Var y = make_output(ctx, "leave_experts", summed(ctx, x.tensor, exchange, "expert results"),
                      placement, x.tracked());
  if (!y.tracked()) return y;
  ctx.tape->record("leave_experts", ctx.layer,
                   [exchange, in = GradSlot(x), out = GradSlot(y)](Backward& back) {
                     Tensor dy = back.take(out);
                     if (dy.empty()) return;
                     back.add(in, gathered(back.ctx, dy, exchange, "gradients for experts"));
                   });
  return y;
}

}  // namespace bev
