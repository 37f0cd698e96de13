#include "ops/recurrent/causal_conv.h"

#include <algorithm>
#include <utility>

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "kernels/recurrent.h"

namespace bev {

namespace {

// Calls body(span, place, source, token) for each token of a document that goes on in a span:
// `place` among its W - 1 entering tokens, and where it is: token of span `source`.
template <class Body>
void for_tokens_before(const SequenceSpans& spans, std::int64_t taps, const Body& body) {
  for (std::int64_t span = 0; span < std::ssize(spans.all()); ++span) {
    std::int64_t place = taps - 1, source = span;
    while (place >= 0 && spans.at(source).goes_on) {
      source = spans.before(source);
      const TokenSpan& from = spans.at(source);
      const std::int64_t first = from.count - from.tail;
      for (std::int64_t token = from.count - 1; token >= first && place >= 0; --token, --place) {
        body(span, place, source, token);
      }
      if (first > 0) break;  // the document began there
    }
  }
}

// The last tokens of this rank's spans, [own, taps C]: the last token of a span is the last one.
Tensor last_tokens(Context& ctx, const SequenceSpans& spans, std::int64_t taps, const Tensor& x) {
  const std::int64_t channels = x.shape()[1];
  Tensor last = ctx.allocate(x.dtype(), {spans.own(), taps * channels}, "states");
  ctx.kernels.fill(ctx.stream, last, 0);
  View tokens = last.view().reshape({spans.own() * taps, channels});
  for (std::int64_t i = 0; i < spans.own(); ++i) {
    const TokenSpan& span = spans.at(spans.first() + i);
    const std::int64_t count = std::min(span.count, taps), end = span.row + span.count;
    ctx.kernels.cast(ctx.stream, x.view().rows(end - count, end),
                     tokens.rows((i + 1) * taps - count, (i + 1) * taps));
  }
  return last;
}

// The tokens before this rank's spans [own, taps C], in the wide dtype.
Tensor tokens_before(Context& ctx, const SequenceSpans& spans, std::int64_t taps, const Tensor& x) {
  const std::int64_t channels = x.shape()[1];
  Tensor all = spans.gather(ctx, last_tokens(ctx, spans, taps, x), "tokens of a convolution");
  Tensor before = ctx.allocate(ctx.wide(), {spans.own(), taps * channels}, "states");
  ctx.kernels.fill(ctx.stream, before, 0);
  View from = all.view().reshape({std::ssize(spans.all()) * taps, channels});
  View to = before.view().reshape({spans.own() * taps, channels});
  for_tokens_before(spans, taps, [&](auto span, auto place, auto source, auto token) {
    if (!spans.is_own(span)) return;
    const std::int64_t row = source * taps + taps - (spans.at(source).count - token);
    const std::int64_t at = (span - spans.first()) * taps + place;
    ctx.kernels.cast(ctx.stream, from.rows(row, row + 1), to.rows(at, at + 1));
  });
  return before;
}

// Adds the gradient of entering tokens, [own, taps C] on every rank, to that of the tokens.
void add_gradient_before(Context& ctx, const SequenceSpans& spans, std::int64_t taps,
                         const Tensor& dbefore, const Tensor& dx) {
  const std::int64_t channels = dx.shape()[1];
  Tensor all = spans.gather(ctx, dbefore, "gradient of tokens of a convolution");
  View from = all.view().reshape({std::ssize(spans.all()) * taps, channels});
  for_tokens_before(spans, taps, [&](auto span, auto place, auto source, auto token) {
    if (!spans.is_own(source)) return;
    const std::int64_t row = spans.at(source).row + token, at = span * taps + place;
    ctx.kernels.elementwise.axpby(ctx.stream, 1, from.rows(at, at + 1), 1,
                                  dx.view().rows(row, row + 1));
  });
}

// A convolution of the tokens of a layout.
struct ConvPass {
  CausalConvSpec spec;
  std::vector<RecurrentRun> runs;
  Tensor before;  // tokens before the runs; empty: none

  CausalConvShape shape() const {
    return {runs, spec.silu, {before.empty() ? View() : before.view()}};
  }
  std::int64_t taps() const { return spec.weight->shape[2] - 1; }

  Tensor forward(Context& ctx, const Tensor& x, const char* tag) const {
    Tensor y = ctx.allocate(x.dtype(), x.shape(), tag);
    WeightLease w = ctx.weights.use(*spec.weight);
    WeightLease b = spec.bias != nullptr ? ctx.weights.use(*spec.bias) : WeightLease{};
    ctx.kernels.recurrent.conv_forward(
        ctx.stream,
        {.shape = shape(), .x = x, .weight = w.view, .bias = b.view, .y = y, .leaving = {}});
    return y;
  }
};

class ConvRecipe final : public Recipe {
 public:
  ConvRecipe(const ConvPass& pass, Saved x) : pass_(pass), x_(std::move(x)) {}
  Tensor make(Context& ctx) const override { return pass_.forward(ctx, x_.get(ctx), "recomputed"); }

 private:
  ConvPass pass_;
  Saved x_;
};

Tensor conv_backward(Context& ctx, const ConvPass& pass, const Placement& placement,
                     const Tensor& x, const Tensor& dy, const SequenceLayout& layout) {
  const Param &weight = *pass.spec.weight, *bias = pass.spec.bias;
  const bool dw_wanted = weight.trains, db_wanted = bias != nullptr && bias->trains;
  auto sink = [&](const Param& param) {
    return ctx.grads.sink(param, gradient_placement(param, placement));
  };
  GradSink dw = dw_wanted ? sink(weight) : GradSink{}, db = db_wanted ? sink(*bias) : GradSink{};
  Tensor dx = dy.unique() ? dy : ctx.allocate(dy.dtype(), dy.shape(), "gradients");
  Tensor dbefore;
  if (!pass.before.empty()) {
    dbefore = ctx.allocate(ctx.wide(), pass.before.shape(), "gradients");
    ctx.kernels.fill(ctx.stream, dbefore, 0);
  }
  {
    WeightLease w = ctx.weights.use(weight);
    WeightLease b = bias != nullptr ? ctx.weights.use(*bias) : WeightLease{};
    ctx.kernels.recurrent.conv_backward(ctx.stream,
                                        {.shape = pass.shape(),
                                         .dy = dy,
                                         .x = x,
                                         .weight = w.view,
                                         .bias = b.view,
                                         .dx = dx,
                                         .dweight = dw.view,
                                         .dbias = db.view,
                                         .weight_beta = dw.beta,
                                         .bias_beta = db.beta,
                                         .dentering = {dbefore.empty() ? View() : dbefore.view()}});
  }
  if (dw_wanted) ctx.grads.done(weight, std::move(dw));
  if (db_wanted) ctx.grads.done(*bias, std::move(db));
  if (!dbefore.empty()) {
    add_gradient_before(ctx, SequenceSpans(ctx, layout), pass.taps(), dbefore, dx);
  }
  return dx;
}

Var decode_conv(Context& ctx, const Var& x, const CausalConvSpec& spec, const RecurrentRows& rows,
                std::int64_t first_state) {
  const std::vector<RecurrentRun> runs = decode_runs(*rows.decode);
  Tensor y = ctx.allocate(x.dtype(), x.shape(), "activations");
  WeightLease w = ctx.weights.use(*spec.weight);
  WeightLease b = spec.bias != nullptr ? ctx.weights.use(*spec.bias) : WeightLease{};
  const StateRows states{rows.states, first_state};
  ctx.kernels.recurrent.conv_forward(ctx.stream, {.shape = {runs, spec.silu, states},
                                                  .x = x.tensor,
                                                  .weight = w.view,
                                                  .bias = b.view,
                                                  .y = y,
                                                  .leaving = states});
  return {y, x.placement, -1, nullptr};
}

}  // namespace

Var causal_conv(Context& ctx, const Var& x, const CausalConvSpec& given, const RecurrentRows& rows,
                std::int64_t first_state) {
  OpScope scope(ctx, "causal_conv");
  ConvPass pass{given, {}, {}};
  pass.spec.weight = &in_use(ctx, *given.weight);
  if (given.bias != nullptr) pass.spec.bias = &in_use(ctx, *given.bias);
  const CausalConvSpec& spec = pass.spec;
  BEV_CHECK(x.shape().ndim() == 2 && x.shape()[1] == spec.weight->local[0], "causal_conv ",
            spec.weight->name, ": input ", x.shape(), " for a weight ", spec.weight->local);
  if (rows.decode != nullptr) return decode_conv(ctx, x, spec, rows, first_state);
  const SequenceSpans spans(ctx, *rows.layout);
  pass.runs = spans.document_runs();
  if (spans.travel() && pass.taps() > 0) {
    pass.before = tokens_before(ctx, spans, pass.taps(), x.tensor);
  }
  const bool trains = spec.weight->trains || (spec.bias != nullptr && spec.bias->trains);
  Var out = make_output(ctx, "causal_conv", pass.forward(ctx, x.tensor, "activations"), x.placement,
                        x.tracked() || trains);
  if (!out.tracked()) return out;
  if (spec.regenerate) out.recipe = make_recipe<ConvRecipe>(ctx, pass, Saved(x));
  ctx.tape->record("causal_conv", ctx.layer,
                   [pass, saved = Saved(x), layout = rows.layout, outer = x.placement,
                    in = GradSlot(x), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Tensor kept = saved.get(back.ctx);
                     back.add(in, conv_backward(back.ctx, pass, outer, kept, dy, *layout));
                   });
  return out;
}

}  // namespace bev
