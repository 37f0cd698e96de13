#include "ops/recurrent/delta_rule.h"

#include <algorithm>
#include <cmath>

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/delta_rule.h"

namespace bev {

namespace {

DeltaShape shape_of(const DeltaRuleSpec& spec, std::span<const RecurrentRun> runs,
                    std::span<const std::int64_t> starts = {}) {
  return {.runs = runs,
          .starts = starts,
          .key_heads = spec.key_heads,
          .value_heads = spec.value_heads,
          .key_size = spec.key_size,
          .value_size = spec.value_size,
          .chunk = spec.chunk,
          .scale = 1 / std::sqrt(static_cast<double>(spec.key_size)),
          .epsilon = spec.epsilon};
}

void check_inputs(const Context& ctx, const DeltaInputs& in) {
  BEV_CHECK(in.g.dtype() == ctx.wide() && in.beta.dtype() == ctx.wide(), ErrorKind::kInternal,
            "delta rule: decays are ", name_of(in.g.dtype()), ", not ", name_of(ctx.wide()));
  BEV_CHECK(in.g.placement == in.qkv.placement && in.beta.placement == in.qkv.placement,
            ErrorKind::kInternal, "delta rule: rows {", in.qkv.placement, "} with decays {",
            in.g.placement, "} and strengths {", in.beta.placement, "}");
}

// What the closures keep of the inputs.
struct DeltaKept {
  Saved qkv;
  Tensor g, beta;
  GradSlot to_qkv, to_g, to_beta;

  explicit DeltaKept(const DeltaInputs& in)
      : qkv(in.qkv),
        g(in.g.tensor),
        beta(in.beta.tensor),
        to_qkv(in.qkv),
        to_g(in.g),
        to_beta(in.beta) {}
  static bool tracked(const DeltaInputs& in) {
    return in.qkv.tracked() || in.g.tracked() || in.beta.tracked();
  }
};

StateRows rows_of(const Tensor& states) {
  if (states.empty()) return {};
  return {states.view().reshape({states.shape()[0], states.shape().row_numel()}), 0};
}

Tensor new_output(Context& ctx, const DeltaInputs& in, const DeltaRuleSpec& spec) {
  return ctx.allocate(in.qkv.dtype(), {in.qkv.shape()[0], spec.value_heads * spec.value_size},
                      "activations");
}
Tensor new_states(Context& ctx, std::int64_t count, const DeltaRuleSpec& spec, const char* tag) {
  return ctx.allocate(ctx.wide(), {count, spec.value_heads, spec.key_size, spec.value_size}, tag);
}

struct StateGradients {
  Tensor entering, dleaving, dentering;
};

// Runs the backward kernel and passes the gradients on.
void add_gradients(Backward& back, const DeltaKept& kept, const Tensor& qkv, const Tensor& dout,
                   const DeltaShape& shape, const StateGradients& states) {
  Context& ctx = back.ctx;
  Tensor dqkv = ctx.allocate(qkv.dtype(), qkv.shape(), "gradients");
  Tensor dg = ctx.allocate(kept.g.dtype(), kept.g.shape(), "gradients");
  Tensor dbeta = ctx.allocate(kept.g.dtype(), kept.g.shape(), "gradients");
  Tensor scratch = ctx.allocate(
      ctx.wide(), {shape.chunks(), shape.value_heads, shape.key_size, shape.value_size},
      "gradients");
  ctx.kernels.delta_rule.backward(ctx.stream, {.shape = shape,
                                               .qkv = qkv,
                                               .g = kept.g,
                                               .beta = kept.beta,
                                               .entering = rows_of(states.entering),
                                               .dout = dout,
                                               .dleaving = rows_of(states.dleaving),
                                               .states = scratch,
                                               .dqkv = dqkv,
                                               .dg = dg,
                                               .dbeta = dbeta,
                                               .dentering = rows_of(states.dentering)});
  if (kept.to_qkv.wanted()) back.add(kept.to_qkv, std::move(dqkv));
  if (kept.to_g.wanted()) back.add(kept.to_g, std::move(dg));
  if (kept.to_beta.wanted()) back.add(kept.to_beta, std::move(dbeta));
}

Tensor or_zeros(Context& ctx, Tensor gradient, Dtype dtype, const Shape& shape) {
  if (!gradient.empty()) return gradient;
  Tensor zeros = ctx.allocate(dtype, shape, "gradients");
  ctx.kernels.fill(ctx.stream, zeros, 0);
  return zeros;
}

// The spans of a layout, and the states that enter and leave those of this rank.
struct DeltaPass {
  DeltaRuleSpec spec;
  SequenceSpans spans;
  std::vector<RecurrentRun> runs;
  Tensor entering = {}, transfer = {};  // empty if states do not travel

  DeltaPass(const Context& ctx, const RecurrentRows& rows, const DeltaRuleSpec& of)
      : spec(of), spans(ctx, *rows.layout), runs(spans.runs()) {}

  DeltaShape shape() const { return shape_of(spec, runs, spans.starts()); }
  Tensor allocate_states(Context& ctx, std::int64_t columns) const {
    return ctx.allocate(ctx.wide(), {spans.own(), spec.value_heads * spec.key_size * columns},
                        "states");
  }
};

// For each span of this rank the spans before it in its document, or after it from the last one.
std::vector<DeltaLink> links_of(const SequenceSpans& spans, bool reverse) {
  std::vector<DeltaLink> links;
  for (const RecurrentRun& chain : spans.chains()) {
    std::vector<std::int64_t> members(spans.order().begin() + chain.row,
                                      spans.order().begin() + chain.row + chain.count);
    if (reverse) std::reverse(members.begin(), members.end());
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!spans.is_own(members[i])) continue;
      for (std::size_t j = 0; j < i; ++j) {
        links.push_back({members[i] - spans.first(), members[j]});
      }
    }
  }
  return links;
}

// This rank's states at the ends of chains over the spans of all ranks.
Tensor follow_links(Context& ctx, const DeltaPass& pass, const Tensor& transfer, const Tensor& add,
                    bool reverse) {
  const DeltaRuleSpec& spec = pass.spec;
  const std::vector<DeltaLink> links = links_of(pass.spans, reverse);
  Tensor all_transfers = pass.spans.gather(ctx, transfer, "factors of states");
  Tensor all = pass.spans.gather(ctx, add, reverse ? "gradients of states" : "states");
  Tensor states = pass.allocate_states(ctx, spec.value_size);
  ctx.kernels.fill(ctx.stream, states, 0);  // of spans that end a chain
  auto matrices = [&](const Tensor& x, std::int64_t columns) {
    return x.view().reshape({x.shape()[0], spec.value_heads, spec.key_size, columns});
  };
  ctx.kernels.delta_rule.link(ctx.stream, {.links = links,
                                           .transfer = matrices(all_transfers, spec.key_size),
                                           .add = matrices(all, spec.value_size),
                                           .states = matrices(states, spec.value_size),
                                           .transpose = reverse});
  return states;
}

// The states that enter this rank's spans.
void exchange_states(Context& ctx, const DeltaInputs& in, DeltaPass& pass) {
  if (!pass.spans.travel()) return;
  std::vector<RecurrentRun> runs = pass.runs;
  for (RecurrentRun& run : runs) run.enter = -1;
  Tensor leaving = pass.allocate_states(ctx, pass.spec.value_size);
  pass.transfer = pass.allocate_states(ctx, pass.spec.key_size);
  ctx.kernels.delta_rule.forward(ctx.stream,
                                 {.shape = shape_of(pass.spec, runs, pass.spans.starts()),
                                  .qkv = in.qkv.tensor,
                                  .g = in.g.tensor,
                                  .beta = in.beta.tensor,
                                  .entering = {},
                                  .out = {},
                                  .leaving = rows_of(leaving),
                                  .transfer = pass.transfer});
  pass.entering = follow_links(ctx, pass, pass.transfer, leaving, false);
}

// Gradients of the leaving states of this rank's spans.
Tensor exchange_gradients(Context& ctx, const DeltaKept& kept, const Tensor& qkv,
                          const Tensor& dout, const DeltaPass& pass) {
  if (!pass.spans.travel()) return {};
  std::vector<RecurrentRun> runs = pass.runs;
  for (RecurrentRun& run : runs) run.leave = -1;
  Tensor dentering = pass.allocate_states(ctx, pass.spec.value_size);
  ctx.kernels.fill(ctx.stream, dentering, 0);
  ctx.kernels.delta_rule.backward(ctx.stream,
                                  {.shape = shape_of(pass.spec, runs, pass.spans.starts()),
                                   .qkv = qkv,
                                   .g = kept.g,
                                   .beta = kept.beta,
                                   .entering = {},
                                   .dout = dout,
                                   .dleaving = {},
                                   .dentering = rows_of(dentering)});
  Tensor dleaving = follow_links(ctx, pass, pass.transfer, dentering, true);
  return dleaving;
}

}  // namespace

DeltaGates delta_gates(Context& ctx, const Var& gates, const Param& log_rate,
                       const Param& bias_of_rate) {
  OpScope scope(ctx, "delta_gates");
  const Param &a_log = in_use(ctx, log_rate), &dt_bias = in_use(ctx, bias_of_rate);
  Shape shape{gates.shape()[0], gates.shape()[1] / 2};
  Tensor g = ctx.allocate(ctx.wide(), shape, "activations");
  Tensor beta = ctx.allocate(ctx.wide(), shape, "activations");
  {
    WeightLease log = ctx.weights.use(a_log), bias = ctx.weights.use(dt_bias);
    ctx.kernels.delta_rule.gates(
        ctx.stream,
        {.gates = gates.tensor, .a_log = log.view, .dt_bias = bias.view, .g = g, .beta = beta});
  }
  const bool wanted = gates.tracked() || a_log.trains || dt_bias.trains;
  DeltaGates out{make_output(ctx, "delta_gates", g, gates.placement, wanted),
                 make_output(ctx, "delta_gates", beta, gates.placement, wanted)};
  if (!out.g.tracked()) return out;
  ctx.tape->record(
      "delta_gates", ctx.layer,
      [saved = Saved(gates), shape, a_log = &a_log, dt_bias = &dt_bias, in = GradSlot(gates),
       to_g = GradSlot(out.g), to_beta = GradSlot(out.beta)](Backward& back) {
        Context& bctx = back.ctx;
        Tensor dg = back.take(to_g), dbeta = back.take(to_beta);
        if (dg.empty() && dbeta.empty()) return;
        dg = or_zeros(bctx, std::move(dg), bctx.wide(), shape);
        dbeta = or_zeros(bctx, std::move(dbeta), bctx.wide(), shape);
        Tensor rows = saved.get(bctx);
        Tensor drows = bctx.allocate(rows.dtype(), rows.shape(), "gradients");
        auto sink = [&](const Param& param) {
          return param.trains ? bctx.grads.sink(param, gradient_placement(param, in.placement))
                              : GradSink{};
        };
        GradSink dlog = sink(*a_log), dbias = sink(*dt_bias);
        {
          WeightLease log = bctx.weights.use(*a_log), bias = bctx.weights.use(*dt_bias);
          bctx.kernels.delta_rule.gates_backward(bctx.stream, {.gates = rows,
                                                               .a_log = log.view,
                                                               .dt_bias = bias.view,
                                                               .dg = dg,
                                                               .dbeta = dbeta,
                                                               .dgates = drows,
                                                               .da_log = dlog.view,
                                                               .ddt_bias = dbias.view,
                                                               .a_log_beta = dlog.beta,
                                                               .dt_bias_beta = dbias.beta});
        }
        if (a_log->trains) bctx.grads.done(*a_log, std::move(dlog));
        if (dt_bias->trains) bctx.grads.done(*dt_bias, std::move(dbias));
        if (in.wanted()) back.add(in, std::move(drows));
      });
  return out;
}

namespace {

// From and to the states of a decoding step.
Var decode(Context& ctx, const DeltaInputs& in, const RecurrentRows& rows,
           const DeltaRuleSpec& spec) {
  constexpr std::int64_t kFewTokens = 4;  // of a run, quicker token by token
  const std::vector<RecurrentRun> runs = decode_runs(*rows.decode);
  const StateRows states{rows.states, 0};
  Tensor out = new_output(ctx, in, spec);
  bool few = true;
  for (const RecurrentRun& run : runs) few = few && run.count <= kFewTokens;
  if (few) {
    ctx.kernels.delta_rule.step(ctx.stream, {.shape = shape_of(spec, runs),
                                             .qkv = in.qkv.tensor,
                                             .g = in.g.tensor,
                                             .beta = in.beta.tensor,
                                             .entering = states,
                                             .out = out,
                                             .leaving = states});
  } else {
    ctx.kernels.delta_rule.forward(ctx.stream, {.shape = shape_of(spec, runs),
                                                .qkv = in.qkv.tensor,
                                                .g = in.g.tensor,
                                                .beta = in.beta.tensor,
                                                .entering = states,
                                                .out = out,
                                                .leaving = states});
  }
  return make_output(ctx, "delta_rule", out, in.qkv.placement, false);
}

}  // namespace

Var delta_rule(Context& ctx, const DeltaInputs& in, const RecurrentRows& rows,
               const DeltaRuleSpec& spec) {
  OpScope scope(ctx, "delta_rule");
  check_inputs(ctx, in);
  if (rows.decode != nullptr) return decode(ctx, in, rows, spec);
  DeltaPass pass(ctx, rows, spec);
  exchange_states(ctx, in, pass);
  Tensor result = new_output(ctx, in, spec);
  // Documents apart, which the threads share out.
  ctx.kernels.delta_rule.forward(ctx.stream, {.shape = shape_of(spec, pass.spans.document_runs()),
                                              .qkv = in.qkv.tensor,
                                              .g = in.g.tensor,
                                              .beta = in.beta.tensor,
                                              .entering = rows_of(pass.entering),
                                              .out = result,
                                              .leaving = {}});
  Var out = make_output(ctx, "delta_rule", result, in.qkv.placement, DeltaKept::tracked(in));
  if (!out.tracked()) return out;
  ctx.tape->record(
      "delta_rule", ctx.layer,
      [kept = DeltaKept(in), pass = std::move(pass), to_out = GradSlot(out)](Backward& back) {
        Tensor dout = back.take(to_out);
        if (dout.empty()) return;
        Tensor qkv = kept.qkv.get(back.ctx);
        Tensor dleaving = exchange_gradients(back.ctx, kept, qkv, dout, pass);
        add_gradients(back, kept, qkv, dout, pass.shape(), {pass.entering, dleaving, {}});
      });
  return out;
}

DeltaResult delta_rule_with_states(Context& ctx, const DeltaInputs& in, const Var& entering,
                                   std::vector<RecurrentRun> runs, const DeltaRuleSpec& spec) {
  OpScope scope(ctx, "delta_rule");
  check_inputs(ctx, in);
  Tensor result = new_output(ctx, in, spec);
  Tensor leaving = new_states(ctx, entering.shape()[0], spec, "activations");
  ctx.kernels.fill(ctx.stream, leaving, 0);
  ctx.kernels.delta_rule.forward(ctx.stream, {.shape = shape_of(spec, runs),
                                              .qkv = in.qkv.tensor,
                                              .g = in.g.tensor,
                                              .beta = in.beta.tensor,
                                              .entering = rows_of(entering.tensor),
                                              .out = result,
                                              .leaving = rows_of(leaving)});
  const bool wanted = DeltaKept::tracked(in) || entering.tracked();
  DeltaResult out{make_output(ctx, "delta_rule", result, in.qkv.placement, wanted),
                  make_output(ctx, "delta_rule", leaving, entering.placement, wanted)};
  if (!out.out.tracked()) return out;
  ctx.tape->record(
      "delta_rule", ctx.layer,
      [kept = DeltaKept(in), runs = std::move(runs), spec, saved = entering.tensor,
       to_entering = GradSlot(entering), to_out = GradSlot(out.out),
       to_leaving = GradSlot(out.leaving), shape = result.shape()](Backward& back) {
        Tensor dout = back.take(to_out), dleaving = back.take(to_leaving);
        if (dout.empty() && dleaving.empty()) return;
        Tensor qkv = kept.qkv.get(back.ctx);
        dout = or_zeros(back.ctx, std::move(dout), qkv.dtype(), shape);
        Tensor dentering = back.ctx.allocate(saved.dtype(), saved.shape(), "gradients");
        back.ctx.kernels.fill(back.ctx.stream, dentering, 0);
        add_gradients(back, kept, qkv, dout, shape_of(spec, runs), {saved, dleaving, dentering});
        if (to_entering.wanted()) back.add(to_entering, std::move(dentering));
      });
  return out;
}

}  // namespace bev
