// The choice of experts and all that follows from it in the backward: gradients of the
// probabilities, of the losses on the choice, and the load that moves expert biases. It is in the
// backward that a token is counted, so that a recomputed layer counts once.
#include <array>

#include "autograd/op_scope.h"
#include "base/error.h"
#include "ops/moe.h"

namespace bev {

namespace {

// Sums over all ranks that share a micro-batch: those of cp, and of tp where tokens are cut.
void sum_over_micro_batch(Context& ctx, const Tensor& values, const Placement& logits) {
  ctx.mesh.cp().all_reduce(values, Reduction::kSum, "router load").wait();
  if (logits[Axis::kTp] != PlaceState::kShard0) return;
  ctx.mesh.tp().all_reduce(values, Reduction::kSum, "router load").wait();
}

struct RouteBackward {
  RouterSpec spec;
  const SequenceLayout* layout;
  Tensor logits, experts;
  GradSlot in;

  void run(Backward& back, const Tensor& dprobs) const {
    Context& ctx = back.ctx;
    std::array<BalanceTerm, 2> terms;
    std::array<Tensor, 2> counts;
    std::size_t used = 0;
    auto add_term = [&](Tensor load, const std::int32_t* group, double coefficient) {
      sum_over_micro_batch(ctx, load, in.placement);
      counts[used] = std::move(load);
      terms[used] = {counts[used], group, coefficient};
      ++used;
    };
    if (ctx.routers != nullptr && layout != nullptr) add_statistics(ctx);
    if (spec.expert_bias != nullptr && spec.expert_bias->trains) move_bias(back);
    if (spec.aux_loss > 0) add_term(load_of(ctx, nullptr, 1), nullptr, spec.aux_loss);
    if (spec.seq_aux_loss > 0) {
      const std::int32_t* group =
          layout->batch_samples.as<std::int32_t>() + token_rows(ctx, *layout, in.placement).begin;
      add_term(load_of(ctx, group, layout->sample_count), group, spec.seq_aux_loss);
    }
    Tensor dlogits = ctx.allocate(logits.dtype(), logits.shape(), "gradients");
    ctx.kernels.moe.route_backward(ctx.stream, {.dprobs = dprobs.view(),
                                                .logits = logits,
                                                .experts = experts,
                                                .dlogits = dlogits,
                                                .rule = spec.rule,
                                                .balance = {terms.data(), used},
                                                .z_coefficient = spec.z_loss,
                                                .factor = &ctx.step->loss_factor});
    back.add(in, std::move(dlogits));
  }

 private:
  void add_statistics(Context& ctx) const {
    bool counted_by_others =
        in.placement[Axis::kTp] == PlaceState::kReplicated && ctx.mesh.tp().rank() > 0;
    const Tensor& sums = ctx.routers->sums;
    if (counted_by_others || ctx.layer < 0 || ctx.layer >= sums.shape()[0]) return;
    std::int64_t count = logits.shape()[1];
    Tensor own = ctx.allocate(logits.dtype(), {1, 2 * count + 2}, "router");
    View flat = own.view().flat();
    View counts = flat.rows(0, count).reshape({1, count});
    View scores = flat.rows(count, 2 * count).reshape({1, count});
    ctx.kernels.moe.router_load(ctx.stream, {logits, experts, nullptr, spec.rule, counts, scores,
                                             flat.rows(2 * count, 2 * count + 2)});
    ctx.kernels.elementwise.axpby(ctx.stream, 1, own, 1,
                                  sums.view().rows(ctx.layer, ctx.layer + 1));
  }

  Tensor load_of(Context& ctx, const std::int32_t* group, std::int64_t groups) const {
    Tensor counts = ctx.allocate(logits.dtype(), {groups, logits.shape()[1]}, "router");
    ctx.kernels.moe.router_load(ctx.stream, {logits, experts, group, spec.rule, counts, {}, {}});
    return counts;
  }

  // The gradient of the bias is E times the load above the mean: whole numbers, whose sums over
  // ranks and micro-batches lose nothing.
  void move_bias(Backward& back) const {
    Tensor counts = load_of(back.ctx, nullptr, 1);
    const Param* bias = spec.expert_bias;
    std::int64_t chosen = experts.numel();
    back.weight_work(
        [bias, counts, chosen, placement = gradient_placement(*bias, in.placement)](Context& ctx) {
          GradSink sink = ctx.grads.sink(*bias, placement);
          Tensor mean = ctx.allocate(counts.dtype(), counts.shape(), "router");
          ctx.kernels.elementwise.fill(ctx.stream, mean, static_cast<double>(chosen));
          auto experts_count = static_cast<double>(counts.numel());
          View to = sink.view.reshape(counts.shape());
          ctx.kernels.elementwise.axpby(ctx.stream, experts_count, counts, sink.beta, to);
          ctx.kernels.elementwise.axpby(ctx.stream, -1, mean, 1, to);
          ctx.grads.done(*bias, std::move(sink));
        });
  }
};

}  // namespace

Routing route(Context& ctx, const Var& logits, const RouterSpec& spec,
              const SequenceLayout* layout) {
  OpScope scope(ctx, "route");
  BEV_CHECK(layout != nullptr || spec.seq_aux_loss == 0, ErrorKind::kInternal,
            "route: a loss over sequences needs the layout");
  Shape chosen = {logits.shape()[0], spec.rule.topk};
  Routing out;
  out.experts = ctx.allocate(Dtype::kI32, chosen, "router");
  Tensor probs = ctx.allocate(logits.dtype(), chosen, "router");
  {
    WeightLease bias = spec.expert_bias ? ctx.weights.use(*spec.expert_bias) : WeightLease{};
    ctx.kernels.moe.route(ctx.stream, {logits.tensor, bias.view, out.experts, probs, spec.rule});
  }
  out.probs = make_output(ctx, "route", std::move(probs), logits.placement, logits.tracked());
  if (!out.probs.tracked()) return out;
  ctx.tape->record(
      "route", ctx.layer,
      [backward = RouteBackward{spec, layout, logits.tensor, out.experts, GradSlot(logits)},
       result = GradSlot(out.probs)](Backward& back) { backward.run(back, back.take(result)); });
  return out;
}

namespace {

// The probabilities as a matrix [T, E] of the model's dtype, zeros elsewhere: sums over a token's
// experts become products.
Tensor spread(Context& ctx, const Tensor& probs, const Tensor& experts, std::int64_t count) {
  Tensor dense = ctx.allocate(ctx.dtype, {probs.shape()[0], count}, "router");
  ctx.kernels.moe.spread(ctx.stream, {probs, experts, dense});
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
    ctx.kernels.gemm.gemm(ctx.stream, {dense, b.view, y.tensor, false, false, 1, 1, {}});
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
          bctx.kernels.gemm.gemm(bctx.stream, {dy, lease.view, all, false, true, 1, 0, {}});
          Tensor dprobs = bctx.allocate(kept.dtype(), kept.shape(), "gradients");
          bctx.kernels.moe.pick(bctx.stream, {dprobs, experts, all});
          back.add(weights, std::move(dprobs));
        }
        if (b->trains) {
          back.weight_work([b, placement, kept, experts, count, dy](Context& wctx) {
            Tensor matrix = spread(wctx, kept, experts, count);
            GradSink sink = wctx.grads.sink(*b, placement);
            wctx.kernels.gemm.gemm(wctx.stream,
                                   {matrix, dy, sink.view, true, false, 1, sink.beta, {}});
            wctx.grads.done(*b, std::move(sink));
          });
        }
        back.add(in, std::move(dy));
      });
  return out;
}

}  // namespace bev
