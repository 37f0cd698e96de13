#include "ops/recurrent/ssd.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "autograd/op_scope.h"
#include "base/error.h"

namespace bev {

namespace {

// The parameters, leased while kernels read them.
struct Leases {
  WeightLease dt_bias, a_log, d;

  Leases(Context& ctx, const SsdSpec& spec)
      : dt_bias(ctx.weights.use(*spec.dt_bias)),
        a_log(ctx.weights.use(*spec.a_log)),
        d(ctx.weights.use(*spec.d)) {}
  SsdInputs inputs(const Tensor& xbc, const Tensor& dt) const {
    return {.xbc = xbc, .dt = dt, .dt_bias = dt_bias.view, .a_log = a_log.view, .d = d.view};
  }
};

StateRows rows_of(const Tensor& states) { return {states.empty() ? View() : states.view()}; }

// Indices of the chunks of runs in the order in which states, or in reverse gradients, pass.
struct PassOrder {
  std::vector<std::int64_t> order;
  std::vector<RecurrentRun> runs;  // over `order`

  PassOrder(const SsdShape& shape, bool reverse) {
    order.resize(static_cast<std::size_t>(chunk_count(shape)));
    std::iota(order.begin(), order.end(), 0);
    std::int64_t first = 0;
    for (const RecurrentRun& run : shape.runs) {
      const std::int64_t chunks = ceil_div(run.count, shape.chunk);
      // Gradients enter where states leave.
      runs.push_back({first, chunks, reverse ? run.leave : run.enter, run.leave});
      if (reverse) std::reverse(order.begin() + first, order.begin() + first + chunks);
      first += chunks;
    }
  }
  PassOrder(const SequenceSpans& spans, bool reverse)
      : order(spans.order().begin(), spans.order().end()),
        runs(spans.chains().begin(), spans.chains().end()) {
    for (const RecurrentRun& run : runs) {
      if (reverse) std::reverse(order.begin() + run.row, order.begin() + run.row + run.count);
    }
  }
};

// A scan over the tokens of a layout.
struct SsdPass {
  SsdSpec spec;
  std::vector<RecurrentRun> runs;
  std::vector<std::int64_t> starts;
  Tensor entering = {};  // states before the runs; empty: zeros
  Tensor totals = {};    // log decays of the spans of all ranks, if states travel

  SsdShape shape() const {
    SsdShape shape = spec.shape;
    shape.runs = runs;
    shape.starts = starts;
    return shape;
  }
  SsdPassArgs pass_args(const PassOrder& order, const Tensor& states, const Tensor& decays) const {
    SsdPassArgs args;
    args.heads = spec.shape.heads;
    args.head_elements = spec.shape.state_size * spec.shape.head_size;
    args.order = order.order;
    args.runs = order.runs;
    args.states = states;
    args.decays = decays;
    return args;
  }
  Tensor allocate_states(Context& ctx) const {
    return ctx.allocate(ctx.wide(), {chunk_count(shape()), spec.shape.state_elements()}, "states");
  }
  Tensor allocate_decays(Context& ctx) const {
    return ctx.allocate(ctx.wide(), {chunk_count(shape()), spec.shape.heads}, "states");
  }
};

// What the tokens of each chunk add to its state, and the decays.
struct ChunkStates {
  Tensor states, decays;

  ChunkStates(Context& ctx, const SsdPass& pass, const SsdInputs& in)
      : states(pass.allocate_states(ctx)), decays(pass.allocate_decays(ctx)) {
    ctx.kernels.ssd.chunk_states(
        ctx.stream, {.shape = pass.shape(), .in = in, .states = states, .decays = decays});
  }
};

// What this rank's spans alone leave behind, and combined over all ranks what enters them.
// `totals`: log decays of all spans; filled in if it is empty.
Tensor exchange_states(Context& ctx, const SsdPass& pass, const SequenceSpans& spans,
                       const ChunkStates& chunks, bool reverse, Tensor& totals) {
  const bool first = totals.empty();
  Tensor left = ctx.allocate(ctx.wide(), {spans.own(), pass.spec.shape.state_elements()}, "states");
  Tensor decayed;
  if (first) decayed = ctx.allocate(ctx.wide(), {spans.own(), pass.spec.shape.heads}, "states");
  {
    const PassOrder order(pass.shape(), reverse);
    SsdPassArgs args = pass.pass_args(order, chunks.states, chunks.decays);
    args.keep = true;
    args.leaving = rows_of(left);
    if (first) args.totals = decayed;
    ctx.kernels.ssd.pass_states(ctx.stream, args);
  }
  Tensor all = spans.gather(ctx, left, reverse ? "gradients of states" : "states");
  if (first) totals = spans.gather(ctx, decayed, "decays of states");
  const PassOrder order(spans, reverse);
  ctx.kernels.ssd.pass_states(ctx.stream, pass.pass_args(order, all, totals));
  Tensor own = ctx.allocate(ctx.wide(), left.shape(), "states");
  ctx.kernels.cast(ctx.stream, spans.own_rows(all), own);
  return own;
}

// Passes states in place: those before each chunk, or in reverse the gradients after each.
void pass_on(Context& ctx, const SsdPass& pass, const ChunkStates& chunks, bool reverse,
             const Tensor& entering) {
  const PassOrder order(pass.shape(), reverse);
  SsdPassArgs args = pass.pass_args(order, chunks.states, chunks.decays);
  args.entering = rows_of(entering);
  ctx.kernels.ssd.pass_states(ctx.stream, args);
}

Tensor ssd_forward(Context& ctx, const SsdPass& pass, const SsdInputs& in, const Tensor& states,
                   const Shape& shape) {
  Tensor y = ctx.allocate(in.xbc.dtype, shape, "activations");
  ctx.kernels.ssd.forward(ctx.stream, {.shape = pass.shape(), .in = in, .states = states, .y = y});
  return y;
}

struct SsdGradients {
  Tensor dxbc, ddt;
};

// Gradients of the parameters go to their sinks.
void ssd_gradients(Context& ctx, const SsdPass& pass, const Placement& placement,
                   SsdBackwardArgs args) {
  const SsdSpec& spec = pass.spec;
  auto sink = [&](const Param& param) {
    if (!param.trains) return GradSink{};
    return ctx.grads.sink(param, gradient_placement(param, placement));
  };
  GradSink bias = sink(*spec.dt_bias), a_log = sink(*spec.a_log), d = sink(*spec.d);
  args.ddt_bias = bias.view;
  args.da_log = a_log.view;
  args.dd = d.view;
  args.dt_bias_beta = bias.beta;
  args.a_log_beta = a_log.beta;
  args.d_beta = d.beta;
  ctx.kernels.ssd.backward(ctx.stream, args);
  if (spec.dt_bias->trains) ctx.grads.done(*spec.dt_bias, std::move(bias));
  if (spec.a_log->trains) ctx.grads.done(*spec.a_log, std::move(a_log));
  if (spec.d->trains) ctx.grads.done(*spec.d, std::move(d));
}

SsdGradients ssd_backward(Context& ctx, SsdPass pass, const Placement& placement, const Tensor& xbc,
                          const Tensor& dt, const Tensor& dy, const SequenceLayout& layout) {
  Leases leases(ctx, pass.spec);
  const SsdInputs in = leases.inputs(xbc, dt);
  const ChunkStates states(ctx, pass, in);
  pass_on(ctx, pass, states, false, pass.entering);
  ChunkStates gradients = states;
  gradients.states = pass.allocate_states(ctx);
  ctx.kernels.ssd.chunk_gradients(
      ctx.stream, {.shape = pass.shape(), .in = in, .dy = dy, .states = gradients.states});
  Tensor dleaving;
  if (!pass.totals.empty()) {
    const SequenceSpans spans(ctx, layout);
    dleaving = exchange_states(ctx, pass, spans, gradients, true, pass.totals);
  }
  pass_on(ctx, pass, gradients, true, dleaving);
  SsdGradients to{ctx.allocate(xbc.dtype(), xbc.shape(), "gradients"),
                  ctx.allocate(dt.dtype(), dt.shape(), "gradients")};
  ssd_gradients(ctx, pass, placement,
                {.shape = pass.shape(),
                 .in = in,
                 .dy = dy,
                 .states = states.states,
                 .dstates = gradients.states,
                 .dxbc = to.dxbc,
                 .ddt = to.ddt,
                 .ddt_bias = {},
                 .da_log = {},
                 .dd = {}});
  return to;
}

// Runs of so few tokens go token by token.
constexpr std::int64_t kStepTokens = 8;

Var decode_ssd(Context& ctx, const Var& xbc, const Var& dt, const SsdSpec& spec,
               const RecurrentRows& rows, std::int64_t first_state) {
  Leases leases(ctx, spec);
  const SsdInputs in = leases.inputs(xbc.tensor, dt.tensor);
  const StateRows states{rows.states, first_state};
  std::vector<RecurrentRun> few;
  SsdPass pass{spec, {}, {}};
  for (const RecurrentRun& run : decode_runs(*rows.decode)) {
    (run.count <= kStepTokens ? few : pass.runs).push_back(run);
  }
  const std::int64_t width = spec.shape.heads * spec.shape.head_size;
  Tensor y = ctx.allocate(xbc.dtype(), {xbc.shape()[0], width}, "activations");
  SsdShape shape = spec.shape;
  shape.runs = few;
  if (!few.empty()) {
    ctx.kernels.ssd.step(ctx.stream, {.shape = shape, .in = in, .states = states, .y = y});
  }
  if (!pass.runs.empty()) {
    const ChunkStates chunks(ctx, pass, in);
    const PassOrder order(pass.shape(), false);
    SsdPassArgs args = pass.pass_args(order, chunks.states, chunks.decays);
    args.entering = args.leaving = states;
    ctx.kernels.ssd.pass_states(ctx.stream, args);
    ctx.kernels.ssd.forward(ctx.stream,
                            {.shape = pass.shape(), .in = in, .states = chunks.states, .y = y});
  }
  return {y, xbc.placement, -1, nullptr};
}

SsdSpec in_use(const Context& ctx, SsdSpec spec) {
  spec.dt_bias = &in_use(ctx, *spec.dt_bias);
  spec.a_log = &in_use(ctx, *spec.a_log);
  spec.d = &in_use(ctx, *spec.d);
  return spec;
}

}  // namespace

Var ssd(Context& ctx, const Var& xbc, const Var& dt, const SsdSpec& given,
        const RecurrentRows& rows, std::int64_t first_state) {
  OpScope scope(ctx, "ssd");
  const SsdSpec spec = in_use(ctx, given);
  BEV_CHECK(xbc.shape().ndim() == 2 && xbc.shape()[1] == spec.shape.columns() &&
                dt.shape()[1] == spec.shape.heads && xbc.placement == dt.placement,
            "ssd ", spec.a_log->name, ": rows ", xbc.shape(), " {", xbc.placement, "} and dt ",
            dt.shape(), " {", dt.placement, "} for ", spec.shape.heads, " heads of ",
            spec.shape.head_size, " with states of ", spec.shape.state_size);
  if (rows.decode != nullptr) return decode_ssd(ctx, xbc, dt, spec, rows, first_state);
  const SequenceSpans spans(ctx, *rows.layout);
  SsdPass pass{spec, spans.runs(), spans.starts()};
  Tensor y;
  {
    Leases leases(ctx, spec);
    const SsdInputs in = leases.inputs(xbc.tensor, dt.tensor);
    const ChunkStates chunks(ctx, pass, in);
    if (spans.travel()) {
      pass.entering = exchange_states(ctx, pass, spans, chunks, false, pass.totals);
    }
    pass_on(ctx, pass, chunks, false, pass.entering);
    const Shape shape{xbc.shape()[0], spec.shape.heads * spec.shape.head_size};
    y = ssd_forward(ctx, pass, in, chunks.states, shape);
  }
  const bool trains = spec.dt_bias->trains || spec.a_log->trains || spec.d->trains;
  Var out =
      make_output(ctx, "ssd", std::move(y), xbc.placement, xbc.tracked() || dt.tracked() || trains);
  if (!out.tracked()) return out;
  ctx.tape->record(
      "ssd", ctx.layer,
      [pass, kept = Saved(xbc), kept_dt = Saved(dt), layout = rows.layout, outer = xbc.placement,
       to_xbc = GradSlot(xbc), to_dt = GradSlot(dt), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        SsdGradients d =
            ssd_backward(bctx, pass, outer, kept.get(bctx), kept_dt.get(bctx), dy, *layout);
        back.add(to_xbc, std::move(d.dxbc));
        back.add(to_dt, std::move(d.ddt));
      });
  return out;
}

}  // namespace bev
