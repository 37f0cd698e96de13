#include "ops/moe/expert_capacity.h"

#include <cmath>

#include "autograd/op_scope.h"
#include "kernels/elementwise.h"
#include "kernels/router.h"

namespace bev {

namespace {

Tensor allocate_like(Context& ctx, const Tensor& x, std::int64_t rows) {
  return ctx.allocate(x.dtype(), {rows, x.shape()[1]}, "router");
}

// Gathers the rows of this rank's tokens to those of the whole micro-batch, in sample order.
Tensor of_micro_batch(Context& ctx, const Tensor& own, const Placement& placement,
                      const SequenceLayout& layout) {
  Tensor apart = gather_micro_batch(ctx, own, placement, layout, "choices");
  if (ctx.mesh.cp().size() == 1) return apart;
  Tensor ordered = allocate_like(ctx, own, apart.shape()[0]);
  copy_into_order(ctx, layout.ring.sets, layout.all_tokens(), apart, ordered);
  return ordered;
}

// The inverse of of_micro_batch: returns this rank's rows.
Tensor of_this_rank(Context& ctx, Tensor rows, const Placement& placement,
                    const SequenceLayout& layout) {
  if (ctx.mesh.cp().size() > 1) {
    Tensor apart = allocate_like(ctx, rows, rows.shape()[0]);
    copy_out_of_order(ctx, layout.ring.sets, layout.all_tokens(), rows, apart);
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < ctx.mesh.at().cp; ++i) {
      begin += layout.ring.sets[static_cast<std::size_t>(i)].tokens();
    }
    rows = apart.rows(begin, begin + layout.tokens);
  }
  Range own = token_rows(ctx, layout, placement);
  return rows.rows(own.begin, own.end);
}

// `dropped` counts over the whole micro-batch, so only one of its ranks adds it to the statistics.
void add_dropped(Context& ctx, const Tensor& dropped, std::int64_t expert_count) {
  if (ctx.routers == nullptr || ctx.mesh.at().tp > 0 || ctx.mesh.at().cp > 0) return;
  const View& sums = ctx.routers->sums;
  if (ctx.layer < 0 || ctx.layer >= sums.shape[0]) return;
  View row = sums.rows(ctx.layer, ctx.layer + 1).flat();
  std::int64_t place = 2 * expert_count + 2;
  ctx.kernels.elementwise.axpby(ctx.stream, 1, dropped, 1, row.rows(place, place + 1));
}

}  // namespace

std::int64_t expert_capacity(const CapacityRule& rule, std::int64_t tokens, std::int64_t topk,
                             std::int64_t expert_count) {
  double even = static_cast<double>(tokens * topk) / static_cast<double>(expert_count);
  return static_cast<std::int64_t>(std::ceil(even * rule.factor));
}

Routing limit_choices(Context& ctx, const Routing& routing, const CapacityRule& rule,
                      std::int64_t expert_count, const SequenceLayout& layout) {
  OpScope scope(ctx, "limit_choices");
  bool cut = ctx.mesh.cp().size() > 1;
  std::int64_t tokens = cut ? layout.all_tokens().tokens() : layout.tokens;
  std::int64_t capacity = expert_capacity(rule, tokens, routing.experts.shape()[1], expert_count);
  // A token chooses an expert at most once, so nothing can be dropped.
  if (capacity >= tokens) return routing;

  const Placement& placement = routing.probs.placement;
  Tensor experts = of_micro_batch(ctx, routing.experts, placement, layout);
  Tensor kept = allocate_like(ctx, experts, tokens);
  Tensor dropped = ctx.allocate(routing.probs.dtype(), {1}, "router"), probs;
  LimitArgs args{.experts = experts, .kept = kept, .dropped = dropped};
  args.expert_count = expert_count;
  args.capacity = capacity;
  if (rule.policy == DropPolicy::kProbs) {
    probs = of_micro_batch(ctx, routing.probs.tensor, placement, layout);
    args.probs = probs;
  } else {
    const Tensor& positions = cut ? layout.heads.sample_positions : layout.sample_positions;
    args.positions = positions.as<std::int32_t>();
  }
  ctx.kernels.router.limit(ctx.stream, args);

  Routing out;
  out.experts = of_this_rank(ctx, kept, placement, layout);
  out.probs =
      make_output(ctx, "limit_choices", routing.probs.tensor, placement, routing.probs.tracked());
  if (!out.probs.tracked()) return out;
  // No row reads a dropped probability, so its gradient is zero already. Drops are counted in the
  // backward, so that a recomputed layer counts once.
  ctx.tape->record("limit_choices", ctx.layer,
                   [dropped, expert_count, in = GradSlot(routing.probs),
                    result = GradSlot(out.probs)](Backward& back) {
                     add_dropped(back.ctx, dropped, expert_count);
                     Tensor dprobs = back.take(result);
                     if (!dprobs.empty()) back.add(in, std::move(dprobs));
                   });
  return out;
}

}  // namespace bev
