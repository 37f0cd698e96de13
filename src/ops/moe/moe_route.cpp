// Top-k routing and its backward: gradients of the probabilities and of the router losses, and the
// load that updates expert biases. Tokens are counted in the backward, so that a recomputed layer
// counts once.
#include <array>

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/router.h"
#include "ops/converted.h"
#include "ops/moe/moe.h"

namespace bev {

namespace {

bool cut_over_tp(const Placement& logits) { return logits[Axis::kTp] == PlaceState::kShard0; }

// Sums over all ranks that share a micro-batch: cp, and tp if tokens are split over it.
void sum_over_micro_batch(Context& ctx, const Tensor& values, const Placement& logits) {
  ctx.mesh.cp().all_reduce(values, Reduction::kSum, "router load").wait();
  if (!cut_over_tp(logits)) return;
  ctx.mesh.tp().all_reduce(values, Reduction::kSum, "router load").wait();
}

Tensor copy_of(Context& ctx, const View& values) {
  Tensor out = ctx.allocate(values.dtype, values.shape, "router");
  ctx.kernels.cast(ctx.stream, values, out);
  return out;
}

// Load-balancing losses as kernel arguments.
struct BalanceTerms {
  std::array<BalanceTerm, 3> terms;
  std::array<Tensor, 3> counts;  // owns the memory that terms refer to
  std::size_t used = 0;

  void add(Tensor load, const std::int32_t* group, double coefficient) {
    counts[used] = std::move(load);
    terms[used] = {counts[used], group, coefficient};
    ++used;
  }
};

// Number of this rank's tokens per expert.
struct RouterCounts {
  Tensor sums;    // [1, 2 E + 2]: prefix of a row of RouterStatistics
  Tensor groups;  // [G, E]: by sample of the micro-batch, if wanted

  View all() const {
    std::int64_t experts = sums.numel() / 2 - 1;
    return sums.view().flat().rows(0, experts).reshape({1, experts});
  }
};

struct RouteBackward {
  RouterSpec spec;
  const SequenceLayout* layout;
  Tensor logits, experts;
  GradSlot in;

  void run(Backward& back, const Tensor& dprobs) const {
    Context& ctx = back.ctx;
    bool statistics = has_statistics(ctx);
    bool moves = spec.expert_bias != nullptr && spec.expert_bias->trains;
    bool balances = spec.losses.balances(), alike = chooses_by_score();
    RouterCounts own;
    if (statistics || moves || (balances && alike)) {
      own = count(ctx, experts, balances && alike, statistics);
    }
    if (statistics) {
      View row = ctx.routers->sums.rows(ctx.layer, ctx.layer + 1).flat();
      ctx.kernels.elementwise.axpby(ctx.stream, 1, own.sums.view().flat(), 1,
                                    row.rows(0, own.sums.numel()));
    }
    if (moves) move_bias(back, own);
    BalanceTerms balance;
    if (balances) {
      add_losses(ctx, alike ? own : count(ctx, choice_by_score(ctx), true, false), balance);
    }
    Tensor dlogits = ctx.allocate(logits.dtype(), logits.shape(), "gradients");
    ctx.kernels.router.route_backward(ctx.stream, {.dprobs = dprobs.view(),
                                                   .logits = logits,
                                                   .experts = experts,
                                                   .dlogits = dlogits,
                                                   .rule = spec.rule,
                                                   .balance = {balance.terms.data(), balance.used},
                                                   .z_coefficient = spec.losses.z,
                                                   .factor = &ctx.step->loss_factor});
    back.add(in, std::move(dlogits));
  }

 private:
  bool has_statistics(const Context& ctx) const {
    if (ctx.routers == nullptr || layout == nullptr) return false;
    bool counted_by_others =
        in.placement[Axis::kTp] == PlaceState::kReplicated && ctx.mesh.tp().rank() > 0;
    return !counted_by_others && ctx.layer >= 0 && ctx.layer < ctx.routers->sums.shape[0];
  }

  // Load-balancing losses count the choices by score alone, without expert bias and groups.
  bool chooses_by_score() const { return spec.expert_bias == nullptr && spec.rule.groups <= 1; }
  Tensor choice_by_score(Context& ctx) const {
    RoutingRule rule = spec.rule;
    rule.groups = 1;
    Tensor chosen = ctx.allocate(Dtype::kI32, experts.shape(), "router");
    Tensor probs = ctx.allocate(logits.dtype(), experts.shape(), "router");
    ctx.kernels.router.route(ctx.stream,
                             {.logits = logits, .experts = chosen, .probs = probs, .rule = rule});
    return chosen;
  }

  // Index of each token's sample in the micro-batch.
  const std::int32_t* samples(const Context& ctx) const {
    return layout->batch_samples.as<std::int32_t>() + token_rows(ctx, *layout, in.placement).begin;
  }

  RouterCounts count(Context& ctx, const Tensor& chosen, bool for_losses, bool with_scores) const {
    std::int64_t width = logits.shape()[1];
    RouterCounts out;
    out.sums = ctx.allocate(logits.dtype(), {1, 2 * width + 2}, "router");
    View flat = out.sums.view().flat();
    RouterLoadArgs args{logits, chosen, nullptr, spec.rule, out.all(), {}, {}};
    if (with_scores) {
      args.scores = flat.rows(width, 2 * width);
      args.totals = flat.rows(2 * width, 2 * width + 2);
    }
    bool by_sample = for_losses && spec.losses.seq_aux > 0;
    if (by_sample) {
      out.groups = ctx.allocate(logits.dtype(), {layout->sample_count, width}, "router");
      args.counts = out.groups;
      args.group = samples(ctx);
    }
    ctx.kernels.router.router_load(ctx.stream, args);
    if (by_sample) {
      ctx.kernels.elementwise.column_sum(ctx.stream, out.groups, 0, out.all().flat());
    }
    return out;
  }

  void add_losses(Context& ctx, const RouterCounts& own, BalanceTerms& balance) const {
    if (spec.losses.aux > 0) {
      Tensor load = copy_of(ctx, own.all());
      sum_over_micro_batch(ctx, load, in.placement);
      balance.add(std::move(load), nullptr, spec.losses.aux);
    }
    if (spec.losses.seq_aux > 0) {
      sum_over_micro_batch(ctx, own.groups, in.placement);
      balance.add(own.groups, samples(ctx), spec.losses.seq_aux);
    }
    if (spec.losses.global_aux > 0) {
      balance.add(count_on(ctx, own.all()), nullptr, spec.losses.global_aux);
    }
  }

  // Load including the micro-batches of the global batch before this one: earlier rounds on all
  // data-parallel ranks, and this round on lower ranks. This order does not depend on the layout.
  Tensor count_on(Context& ctx, const View& own) const {
    Tensor mine = copy_of(ctx, own);
    if (cut_over_tp(in.placement)) {
      ctx.mesh.tp().all_reduce(mine, Reduction::kSum, "router load").wait();
    }
    Group& ranks = ctx.mesh.grads();
    std::int64_t cp = ctx.mesh.shape().cp, upto = (ctx.mesh.at().dp + 1) * cp;
    Tensor all = ctx.allocate(own.dtype, {ranks.size(), own.shape[1]}, "router");
    ranks.all_gather(mine, all, "router load").wait();
    Tensor load = ctx.allocate(own.dtype, own.shape, "router");
    const ElementwiseKernels& kernels = ctx.kernels.elementwise;
    kernels.column_sum(ctx.stream, all.rows(0, upto), 0, load.view().flat());
    if (ctx.routers == nullptr) return load;
    View earlier = ctx.routers->global_counts.view().rows(ctx.layer, ctx.layer + 1);
    kernels.axpby(ctx.stream, 1, earlier, 1, load);
    kernels.column_sum(ctx.stream, all, 1, earlier.flat());
    return load;
  }

  // The gradient of the bias is E times the load above the mean: an integer, so sums over ranks and
  // micro-batches are exact.
  void move_bias(Backward& back, const RouterCounts& own) const {
    const Param* bias = spec.expert_bias;
    std::int64_t chosen = experts.numel();
    back.deferred_wgrad(
        [bias, own, chosen, placement = gradient_placement(*bias, in.placement)](Context& ctx) {
          GradSink sink = ctx.grads.sink(*bias, placement);
          View counts = own.all();
          Tensor mean = ctx.allocate(counts.dtype, counts.shape, "router");
          ctx.kernels.fill(ctx.stream, mean, static_cast<double>(chosen));
          auto experts_count = static_cast<double>(counts.numel());
          View to = sink.view.reshape(counts.shape);
          ctx.kernels.elementwise.axpby(ctx.stream, experts_count, counts, sink.beta, to);
          ctx.kernels.elementwise.axpby(ctx.stream, -1, mean, 1, to);
          ctx.grads.done(*bias, std::move(sink));
        });
  }
};

// Bias added to the scores for the choice only; empty: none.
WeightLease choice_bias(Context& ctx, const Var& logits, const RouterSpec& spec,
                        const SequenceLayout* layout) {
  if (spec.expert_bias != nullptr) return ctx.weights.use(*spec.expert_bias);
  if (!spec.sinkhorn || !ctx.training || layout == nullptr) return {};
  Tensor bias = ctx.allocate(logits.tensor.dtype(), {logits.shape()[1]}, "router");
  ctx.kernels.router.sinkhorn(
      ctx.stream,
      {gather_micro_batch(ctx, logits.tensor, logits.placement, *layout, "logits"), bias});
  return {bias, bias};
}

}  // namespace

Routing route(Context& ctx, const Var& logits, const RouterSpec& spec,
              const SequenceLayout* layout) {
  OpScope scope(ctx, "route");
  BEV_CHECK(layout != nullptr || spec.losses.seq_aux == 0, ErrorKind::kInternal,
            "route: a loss over sequences needs the layout");
  Shape chosen = {logits.shape()[0], spec.rule.topk};
  Routing out;
  out.experts = ctx.allocate(Dtype::kI32, chosen, "router");
  Tensor probs = ctx.allocate(logits.tensor.dtype(), chosen, "router");
  {
    WeightLease bias = choice_bias(ctx, logits, spec, layout);
    ctx.kernels.router.route(ctx.stream, {.logits = logits.tensor,
                                          .bias = bias.view,
                                          .experts = out.experts,
                                          .probs = probs,
                                          .rule = spec.rule});
  }
  out.probs = make_output(ctx, "route", converted(ctx, probs, ctx.wide(), "router"),
                          logits.placement, logits.tracked());
  if (!out.probs.tracked()) return out;
  ctx.tape->record(
      "route", ctx.layer,
      [backward = RouteBackward{spec, layout, logits.tensor, out.experts, GradSlot(logits)},
       result = GradSlot(out.probs)](Backward& back) {
        backward.run(back,
                     converted(back.ctx, back.take(result), backward.logits.dtype(), "router"));
      });
  return out;
}

namespace {

// Scatters the probabilities to a dense matrix [T, E] in the model dtype, with zeros elsewhere, so
// that the sum over a token's experts is a GEMM.
Tensor spread(Context& ctx, const Tensor& probs, const Tensor& experts, std::int64_t count) {
  Tensor dense = ctx.allocate(ctx.dtype, {probs.shape()[0], count}, "router");
  ctx.kernels.router.spread(ctx.stream, {probs, experts, dense});
  return dense;
}

}  // namespace

Var add_expert_biases(Context& ctx, const Var& y, const Routing& routing, const Param& bias) {
  OpScope scope(ctx, "add_expert_biases");
  const Var& probs = routing.probs;
  BEV_CHECK(y.shape()[1] == bias.local[1] && probs.shape()[0] == y.shape()[0] &&
                probs.placement == y.placement,
            "add_expert_biases ", bias.name, ": input ", y.shape(), " {", y.placement,
            "}, probabilities ", probs.shape(), " {", probs.placement, "}, biases ", bias.local);
  Tensor dense = spread(ctx, probs.tensor, routing.experts, bias.local[0]);
  {
    WeightLease b = ctx.weights.use(bias);
    ctx.kernels.gemm.gemm(ctx.stream, {.a = dense, .b = b.view, .c = y.tensor, .beta = 1});
  }
  Var out = make_output(ctx, "add_expert_biases", y.tensor, y.placement,
                        y.tracked() || probs.tracked() || bias.trains);
  if (!out.tracked()) return out;
  ctx.tape->record(
      "add_expert_biases", ctx.layer,
      [b = &bias, placement = gradient_placement(bias, y.placement), kept = probs.tensor,
       experts = routing.experts, in = GradSlot(y), weights = GradSlot(probs),
       result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        std::int64_t count = b->local[0];
        if (weights.wanted()) {
          Tensor all = bctx.allocate(kept.dtype(), {dy.shape()[0], count}, "gradients");
          WeightLease lease = bctx.weights.use(*b);
          bctx.kernels.gemm.gemm(bctx.stream,
                                 {.a = dy, .b = lease.view, .c = all, .transpose_b = true});
          Tensor dprobs = bctx.allocate(kept.dtype(), kept.shape(), "gradients");
          bctx.kernels.router.pick(bctx.stream, {dprobs, experts, all});
          back.add(weights, std::move(dprobs));
        }
        if (b->trains) {
          back.deferred_wgrad([b, placement, kept, experts, count, dy](Context& wctx) {
            Tensor matrix = spread(wctx, kept, experts, count);
            GradSink sink = wctx.grads.sink(*b, placement);
            wctx.kernels.gemm.gemm(
                wctx.stream,
                {.a = matrix, .b = dy, .c = sink.view, .transpose_a = true, .beta = sink.beta});
            wctx.grads.done(*b, std::move(sink));
          });
        }
        back.add(in, std::move(dy));
      });
  return out;
}

}  // namespace bev
