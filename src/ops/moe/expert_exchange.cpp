#include "ops/moe/expert_exchange.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "autograd/interleaved_backward.h"
#include "autograd/op_scope.h"
#include "base/divide.h"
#include "base/error.h"
#include "kernels/device.h"
#include "kernels/moe.h"

namespace bev {

namespace {

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// Number of tokens each rank of the group has of a tensor with this placement.
std::vector<std::int64_t> tokens_of_members(const Context& ctx, const Group& group,
                                            const Placement& placement,
                                            const SequenceLayout& layout) {
  const MeshShape& mesh = ctx.mesh.shape();
  bool split = placement[Axis::kTp] == PlaceState::kShard0;
  std::vector<std::int64_t> tokens = layout.expert_tokens;
  for (std::size_t i = 0; i < tokens.size() && split; ++i) {
    std::int64_t tp = coordinate_of(mesh, group.members()[i]).tp;
    tokens[i] = shard_range(tokens[i], mesh.tp, tp).size();
  }
  return tokens;
}

// Expected number of tokens, out of `tokens`, with at least one expert on a given ep rank under
// even load, times a factor; at most all.
std::int64_t tokens_reaching(std::int64_t tokens, std::int64_t topk, std::int64_t ep,
                             double factor = 1) {
  double missed = std::pow(1 - 1 / static_cast<double>(ep), static_cast<double>(topk));
  double reaching = std::ceil(static_cast<double>(tokens) * (1 - missed) * factor);
  return static_cast<std::int64_t>(std::min(reaching, static_cast<double>(tokens)));
}

// Counts for a device that does not compute (memory planning): those of an even load.
std::vector<std::int32_t> expected_counts(std::int64_t tokens, std::int64_t topk, std::int64_t ep,
                                          std::int64_t members) {
  auto reached = static_cast<std::int32_t>(tokens_reaching(tokens, topk, ep));
  auto rows = static_cast<std::int32_t>(ceil_div(tokens * topk, ep));
  std::vector<std::int32_t> counts;
  for (std::int64_t i = 0; i < 2 * members; ++i) counts.insert(counts.end(), {reached, rows});
  return counts;
}

// Exact sizes: sorts tokens by destination rank and exchanges the counts. The host waits for them.
void plan_rows(Context& ctx, const Tensor& experts, std::int64_t expert_count, Dispatch& plan) {
  std::int64_t etp = ctx.mesh.shape().etp, members = plan.group->size();
  std::int64_t topk = experts.shape()[1];
  Tensor choices = ctx.allocate(Dtype::kI32, {experts.shape()[0], topk * etp}, "router");
  // Tokens and choices sent to each member, then those received from each.
  Tensor counts = ctx.allocate(Dtype::kI32, {2 * members, 2}, "router");
  View sent = counts.view().rows(0, members), received = counts.view().rows(members, 2 * members);
  ctx.kernels.moe.dispatch(ctx.stream, {.experts = experts,
                                        .members = choices,
                                        .counts = sent,
                                        .expert_count = expert_count,
                                        .etp = etp});
  std::vector<std::int64_t> two(static_cast<std::size_t>(members), 2);
  plan.group->all_to_all(sent, two, received, two, "counts for experts").wait();
  std::vector<std::int32_t> numbers = expected_counts(plan.own, topk, ctx.mesh.shape().ep, members);
  Work arrival = ctx.kernels.device.fetch(ctx.stream, counts, numbers.data());
  plan.sent = sort_rows(ctx, choices, 0, members);
  arrival.wait();
  auto count = static_cast<std::size_t>(members);
  plan.expert_rows = 0;
  for (std::size_t i = 0; i < count; ++i) {
    plan.send.push_back(numbers[2 * i]);
    plan.receive.push_back(numbers[2 * (count + i)]);
    plan.expert_rows += numbers[2 * (count + i) + 1];
  }
  plan.sent.keep(sum_of(plan.send));
  plan.inside = sum_of(plan.receive);
}

// Fixed sizes: blocks whose size every member can compute for every other, without a host sync.
void plan_blocks(Context& ctx, double factor, const Tensor& experts, std::int64_t expert_count,
                 std::span<const std::int64_t> tokens, Dispatch& plan) {
  std::int64_t etp = ctx.mesh.shape().etp, ep = ctx.mesh.shape().ep, members = plan.group->size();
  std::int64_t topk = experts.shape()[1];
  Tensor choices = ctx.allocate(Dtype::kI32, {experts.shape()[0], topk * etp}, "router");
  Tensor counts = ctx.allocate(Dtype::kI32, {members, 2}, "router");
  ctx.kernels.moe.dispatch(ctx.stream, {.experts = experts,
                                        .members = choices,
                                        .counts = counts,
                                        .expert_count = expert_count,
                                        .etp = etp});
  plan.sent = sort_rows(ctx, choices, 0, members);
  std::int64_t block = tokens_reaching(plan.own, topk, ep, factor);
  fit_blocks(ctx, plan.sent, block);
  plan.send.assign(static_cast<std::size_t>(members), block);
  for (std::int64_t count : tokens) {
    plan.receive.push_back(tokens_reaching(count, topk, ep, factor));
  }
  plan.inside = sum_of(plan.receive);
}

// Row capacity of this rank's experts: their even share of all choices times the factor, at most
// all that the dispatched tokens can have chosen.
std::int64_t room_for_rows(std::int64_t tokens, std::int64_t topk, std::int64_t ep, double factor,
                           std::int64_t most) {
  double share = static_cast<double>(tokens * topk) / static_cast<double>(ep);
  return static_cast<std::int64_t>(std::min(std::ceil(share * factor), static_cast<double>(most)));
}

}  // namespace

DispatchRef plan_dispatch(Context& ctx, const ExpertParallel& parallel, const Tensor& experts,
                          std::int64_t expert_count, const Placement& placement,
                          const SequenceLayout& layout) {
  OpScope scope(ctx, "plan_dispatch");
  const MeshShape& mesh = ctx.mesh.shape();
  PlaceState state = placement[Axis::kTp];
  BEV_CHECK(state == PlaceState::kReplicated || state == PlaceState::kShard0, ErrorKind::kInternal,
            "experts: the input {", placement, "} must be whole or split over tokens");
  auto plan = std::make_shared<Dispatch>();
  plan->group = &ctx.mesh.group(MeshGroup::kExperts);
  plan->own = plan->inside = token_rows(ctx, layout, placement).size();
  bool own_tokens = mesh.tp == 1 || state == PlaceState::kShard0;
  if (!own_tokens) {
    BEV_CHECK(mesh.ep == 1 && mesh.etp == mesh.tp, ErrorKind::kInternal, "experts: ep ", mesh.ep,
              " and etp ", mesh.etp, " with tp ", mesh.tp, " need tokens of each rank's own");
    return plan;
  }
  if (plan->group->size() == 1) return plan;
  std::vector<std::int64_t> tokens = tokens_of_members(ctx, *plan->group, placement, layout);
  double factor = parallel.rank_capacity;
  // With ep 1 every token goes to every member anyway.
  plan->fixed = factor > 0 && ctx.lost_rows != nullptr && mesh.ep > 1;
  if (parallel.dispatcher == TokenDispatcher::kAllGather || mesh.ep == 1) {
    plan->kind = Dispatch::Kind::kGather;
    plan->inside = sum_of(tokens);
  } else {
    plan->kind = Dispatch::Kind::kRows;
    if (plan->fixed) {
      plan_blocks(ctx, factor, experts, expert_count, tokens, *plan);
    } else {
      plan_rows(ctx, experts, expert_count, *plan);
    }
  }
  if (plan->fixed) {
    std::int64_t topk = experts.shape()[1];
    std::int64_t held = shard_range(expert_count, mesh.ep, ctx.mesh.at().ep).size();
    plan->expert_rows =
        room_for_rows(sum_of(tokens), topk, mesh.ep, factor, plan->inside * std::min(topk, held));
  }
  return plan;
}

ExpertRows rows_of_experts(Context& ctx, const Tensor& choices, std::int64_t expert_count,
                           const Dispatch& dispatch) {
  std::int64_t ep = ctx.mesh.shape().ep;
  Range own = shard_range(expert_count, ep, ctx.mesh.at().ep);
  ExpertRows rows = sort_rows(ctx, choices, own.begin, own.size());
  // Truncates to the rows of this rank's experts, which may be a small part of all.
  if (dispatch.fixed) {
    fit_rows(ctx, rows, dispatch.expert_rows);
  } else if (dispatch.expert_rows >= 0) {
    rows.keep(dispatch.expert_rows);
  } else if (ep > 1) {
    rows.keep(count_rows(ctx, rows, rows.count() / ep));
  }
  return rows;
}

namespace {

// A tensor in flight: `from` must stay alive until `work` completes.
struct Flight {
  Tensor from, to;
  Work work;

  bool under_way() const { return !to.empty(); }
};

Shape with_rows(Shape shape, std::int64_t rows) {
  shape[0] = rows;
  return shape;
}

// All-to-all of the rows of x: to the experts, or back.
Flight exchange_rows(Context& ctx, Tensor x, const Dispatch& plan, bool back, const char* label) {
  std::int64_t width = with_rows(x.shape(), 1).numel();
  auto elements = [&](std::vector<std::int64_t> counts) {
    for (std::int64_t& count : counts) count *= width;
    return counts;
  };
  std::vector<std::int64_t> send = elements(back ? plan.receive : plan.send);
  std::vector<std::int64_t> receive = elements(back ? plan.send : plan.receive);
  std::int64_t rows = back ? plan.sent.count() : plan.inside;
  Tensor to = ctx.allocate(x.dtype(), with_rows(x.shape(), rows), "dispatched tokens");
  Work work = plan.group->all_to_all(x.view().flat(), send, to.view().flat(), receive, label);
  return {std::move(x), std::move(to), std::move(work)};
}

// Starts the dispatch of this rank's tokens to the experts.
Flight start_bringing(Context& ctx, const Tensor& x, const Dispatch& plan, const char* label) {
  switch (plan.kind) {
    case Dispatch::Kind::kSame:
      return {{}, x, {}};
    case Dispatch::Kind::kGather: {
      Tensor all = ctx.allocate(x.dtype(), with_rows(x.shape(), plan.inside), "dispatched tokens");
      Work work = plan.group->all_gather(x, all, label);
      return {x, std::move(all), std::move(work)};
    }
    case Dispatch::Kind::kRows:
      return exchange_rows(ctx, permute_rows(ctx, x, plan.sent, "dispatched tokens"), plan, false,
                           label);
  }
  return {};
}

Tensor finish_bringing(Flight flight) {
  flight.work.wait();
  return std::move(flight.to);
}

// Starts the return of sums for dispatched tokens to their owners. x must not be saved by its
// producer.
Flight start_returning(Context& ctx, Tensor x, const Dispatch& plan, const char* label) {
  if (plan.group->size() == 1) return {{}, std::move(x), {}};
  switch (plan.kind) {
    case Dispatch::Kind::kSame: {
      if (!x.unique()) {
        Tensor copy = ctx.allocate(x.dtype(), x.shape(), "activations");
        ctx.kernels.cast(ctx.stream, x, copy);
        x = std::move(copy);
      }
      Work work = plan.group->all_reduce(x, Reduction::kSum, label);
      return {{}, std::move(x), std::move(work)};
    }
    case Dispatch::Kind::kGather: {
      Tensor own = ctx.allocate(x.dtype(), with_rows(x.shape(), plan.own), "activations");
      Work work = plan.group->reduce_scatter(x, own, label);
      return {std::move(x), std::move(own), std::move(work)};
    }
    case Dispatch::Kind::kRows:
      return exchange_rows(ctx, std::move(x), plan, true, label);
  }
  return {};
}

Tensor finish_returning(Context& ctx, Flight flight, const Dispatch& plan) {
  flight.work.wait();
  if (plan.kind != Dispatch::Kind::kRows) return std::move(flight.to);
  return unpermute_rows(ctx, flight.to, plan.sent, "activations");
}

}  // namespace

Placement expert_placement(PlaceState etp, PlaceState ep) {
  return Placement()
      .with(Axis::kEdp, PlaceState::kShard0)
      .with(Axis::kEtp, etp)
      .with(Axis::kEp, ep);
}

struct DispatchedTokens::Passage {
  DispatchRef dispatch;
  bool overlap = false;
  Flight there, back;
  std::shared_ptr<const Recipe> recipe;
};

DispatchedTokens start_dispatch(Context& ctx, const Var& x, const DispatchRef& dispatch,
                                bool overlap) {
  OpScope scope(ctx, "enter_experts");
  auto passage = std::make_shared<DispatchedTokens::Passage>();
  passage->dispatch = dispatch;
  passage->overlap = overlap;
  passage->there = start_bringing(ctx, x.tensor, *dispatch, "tokens for experts");
  if (!overlap) passage->there.work.wait();
  if (dispatch->kind == Dispatch::Kind::kSame) passage->recipe = x.recipe;
  if (ctx.tape != nullptr && x.tracked()) {
    ctx.tape->record("enter_experts", ctx.layer, [passage, in = GradSlot(x)](Backward& back) {
      if (!passage->back.under_way()) return;
      back.add(in, finish_returning(back.ctx, std::move(passage->back), *passage->dispatch));
    });
  }
  return {passage, x.tracked()};
}

Var finish_dispatch(Context& ctx, DispatchedTokens tokens) {
  OpScope scope(ctx, "enter_experts");
  DispatchedTokens::Passage& passage = *tokens.passage;
  Var y = make_output(ctx, "enter_experts", finish_bringing(std::move(passage.there)),
                      expert_placement(PlaceState::kCopied, PlaceState::kCopied), tokens.tracked);
  if (!y.tracked()) return y;
  y.recipe = std::move(passage.recipe);
  ctx.tape->record("enter_experts", ctx.layer,
                   [passage = std::move(tokens.passage), out = GradSlot(y)](Backward& back) {
                     Tensor dy = back.take(out);
                     if (dy.empty()) return;
                     passage->back = start_returning(back.ctx, std::move(dy), *passage->dispatch,
                                                     "expert gradients");
                     if (!passage->overlap) passage->back.work.wait();
                   });
  return y;
}

Var dispatch_tokens(Context& ctx, const Var& x, const DispatchRef& dispatch) {
  return finish_dispatch(ctx, start_dispatch(ctx, x, dispatch, false));
}

Var combine_tokens(Context& ctx, const Var& x, const Placement& placement,
                   const DispatchRef& dispatch, bool yields_to_partner) {
  BEV_CHECK(x.placement == expert_placement(PlaceState::kPartial, PlaceState::kPartial),
            ErrorKind::kInternal, "leave_experts: the input {", x.placement,
            "} must be a partial sum over etp and ep");
  bool tracked = ctx.tape != nullptr && x.tracked();
  auto gradient = std::make_shared<Flight>();
  Flight flight;
  {
    OpScope scope(ctx, "leave_experts");
    flight = start_returning(ctx, x.tensor, *dispatch, "expert results");
    if (tracked) {
      ctx.tape->record("leave_experts", ctx.layer, [gradient, in = GradSlot(x)](Backward& back) {
        if (gradient->under_way()) back.add(in, finish_bringing(std::move(*gradient)));
      });
    }
  }
  if (yields_to_partner) yield_to_partner(ctx);
  OpScope scope(ctx, "leave_experts");
  Var y = make_output(ctx, "leave_experts", finish_returning(ctx, std::move(flight), *dispatch),
                      placement, tracked);
  if (!tracked) return y;
  ctx.tape->record("leave_experts", ctx.layer,
                   [gradient, dispatch, out = GradSlot(y)](Backward& back) {
                     Tensor dy = back.take(out);
                     if (dy.empty()) return;
                     *gradient = start_bringing(back.ctx, dy, *dispatch, "gradients for experts");
                   });
  return y;
}

namespace {

Tensor own_share(const Context& ctx, const Tensor& whole) {
  Range own = shard_range(whole.shape()[0], ctx.mesh.tp().size(), ctx.mesh.tp().rank());
  return whole.rows(own.begin, own.end);
}

Tensor united(Context& ctx, const Tensor& part, std::int64_t tokens, const char* label) {
  Tensor whole = ctx.allocate(part.dtype(), with_rows(part.shape(), tokens), "activations");
  ctx.mesh.tp().all_gather(part, whole, label).wait();
  return whole;
}

}  // namespace

Var share_tokens(Context& ctx, const Var& x) {
  OpScope scope(ctx, "share_tokens");
  Var y = make_output(ctx, "share_tokens", own_share(ctx, x.tensor),
                      x.placement.with(Axis::kTp, PlaceState::kShard0), x.tracked());
  if (!y.tracked()) return y;
  ctx.tape->record("share_tokens", ctx.layer,
                   [tokens = x.shape()[0], in = GradSlot(x), out = GradSlot(y)](Backward& back) {
                     Tensor dy = back.take(out);
                     if (dy.empty()) return;
                     back.add(in, united(back.ctx, dy, tokens, "gradients of shared tokens"));
                   });
  return y;
}

Var unite_tokens(Context& ctx, const Var& x, std::int64_t tokens) {
  OpScope scope(ctx, "unite_tokens");
  Var y = make_output(ctx, "unite_tokens", united(ctx, x.tensor, tokens, "shared tokens"),
                      x.placement.with(Axis::kTp, PlaceState::kReplicated), x.tracked());
  if (!y.tracked()) return y;
  ctx.tape->record("unite_tokens", ctx.layer,
                   [in = GradSlot(x), out = GradSlot(y)](Backward& back) {
                     Tensor dy = back.take(out);
                     if (!dy.empty()) back.add(in, own_share(back.ctx, dy));
                   });
  return y;
}

}  // namespace bev
