#include "ops/attention/attention.h"

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/rope.h"

namespace bev {

namespace {

struct FusedRows {
  void *q, *k, *v;
};
FusedRows fused_rows(const View& qkv, const AttentionSpec& spec) {
  return {qkv.data, qkv.address(spec.q_columns()),
          qkv.address(spec.q_columns() + spec.k_columns())};
}

void check_rows(const Var& qkv, const AttentionSpec& spec) {
  std::int64_t width = spec.q_columns() + spec.k_columns() + spec.v_columns();
  BEV_CHECK(qkv.shape().ndim() == 2 && qkv.shape()[1] == width, "attention: rows of ", qkv.shape(),
            " for ", spec.q_heads, " + 2 x ", spec.kv_heads, " heads of ", spec.head_size, " and ",
            spec.v_head_size);
  BEV_CHECK(qkv.placement[Axis::kTp] == PlaceState::kShard1, ErrorKind::kInternal,
            "attention: the input {", qkv.placement, "} must be split over heads");
}

AttentionResult run_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape,
                            const AttentionSpec& spec) {
  std::int64_t rows = qkv.shape()[0];
  AttentionResult result{ctx.allocate(ctx.dtype, {rows, spec.out_columns()}, "activations"),
                         ctx.allocate(ctx.wide(), {rows, spec.q_heads}, "activations")};
  FusedRows at = fused_rows(qkv, spec);
  ctx.kernels.attention.forward(ctx.stream, {.shape = shape,
                                             .q = at.q,
                                             .k = at.k,
                                             .v = at.v,
                                             .out = result.out,
                                             .lse = result.lse,
                                             .max_logits = max_logits(ctx, spec)});
  bound_logits(ctx, spec, result);
  add_sinks(ctx, spec, result);
  return result;
}

// Sink logits of the heads of this call; empty if all are 0.
View sink_view(const AttentionSpec& spec, const WeightLease& logits) {
  if (spec.sinks.logits == nullptr) return {};
  return logits.view.rows(spec.sinks.first, spec.sinks.first + spec.q_heads);
}
WeightLease lease_sinks(Context& ctx, const AttentionSpec& spec) {
  return spec.sinks.logits ? ctx.weights.use(*spec.sinks.logits) : WeightLease{};
}

}  // namespace

View max_logits(const Context& ctx, const AttentionSpec& spec) {
  if (ctx.max_logits.empty() || ctx.layer < 0 || ctx.layer >= ctx.max_logits.shape[0]) return {};
  const View row = ctx.max_logits.rows(ctx.layer, ctx.layer + 1).flat();
  return row.rows(spec.head_offset, spec.head_offset + spec.q_heads);
}

void bound_logits(const Context& ctx, const AttentionSpec& spec, const AttentionResult& result) {
  const auto bound = ctx.kernels.attention.bound_logits;
  const View to = max_logits(ctx, spec);
  if (bound != nullptr && !to.empty()) bound(ctx.stream, result.lse, to);
}

void add_sinks(Context& ctx, const AttentionSpec& spec, const AttentionResult& result) {
  if (spec.rule.sink == SoftmaxSink::kNone) return;
  WeightLease logits = lease_sinks(ctx, spec);
  ctx.kernels.attention.add_sinks(ctx.stream, {sink_view(spec, logits), result.out, result.lse});
}

void add_sink_gradient(Backward& back, const AttentionSpec& spec, const Placement& placement,
                       const AttentionResult& result, const Tensor& dout) {
  const Param* logits = spec.sinks.logits;
  if (logits == nullptr || !logits->trains) return;
  back.deferred_wgrad(
      [spec, logits, result, dout, to = gradient_placement(*logits, placement)](Context& ctx) {
        // The heads of this call that belong to other ranks get no gradient here.
        Tensor terms = ctx.allocate(ctx.wide(), {dout.shape()[0], logits->local[0]}, "gradients");
        ctx.kernels.fill(ctx.stream, terms, 0);
        {
          WeightLease lease = ctx.weights.use(*logits);
          ctx.kernels.attention.sink_terms(ctx.stream, {.sinks = sink_view(spec, lease),
                                                        .out = result.out,
                                                        .dout = dout,
                                                        .lse = result.lse,
                                                        .terms = terms,
                                                        .first = spec.sinks.first});
        }
        GradSink sink = ctx.grads.sink(*logits, to);
        ctx.kernels.elementwise.column_sum(ctx.stream, terms, sink.beta, sink.view);
        ctx.grads.done(*logits, std::move(sink));
      });
}

AttentionShape attention_shape(const Context& ctx, const AttentionSpec& spec,
                               const RowStrides& strides, std::span<const AttentionRun> runs) {
  AttentionShape shape;
  shape.runs = runs;
  shape.q_heads = spec.q_heads;
  shape.kv_heads = spec.kv_heads;
  shape.head_size = spec.head_size;
  shape.v_head_size = spec.v_head_size;
  shape.q_stride = strides.q;
  shape.k_stride = strides.k;
  shape.v_stride = strides.v;
  shape.dtype = ctx.dtype;
  shape.rule = spec.rule;
  shape.rule.dropout = 0;
  shape.head_offset = spec.head_offset;
  return shape;
}

void set_dropout(const Context& ctx, const AttentionRows& rows, double p, AttentionShape& shape) {
  shape.rule.dropout = p;
  shape.random = {&ctx.step->random_key, rows.samples.as<std::int32_t>(),
                  rows.sample_positions.as<std::int32_t>(),
                  random_stream(ctx.layer, RandomUse::kAttentionDropout)};
}

Tensor rope_table(Context& ctx, const Tensor& positions, std::span<const double> frequencies,
                  double scale) {
  auto width = static_cast<std::int64_t>(2 * frequencies.size());
  Tensor table = ctx.allocate(ctx.wide(), {positions.numel(), width}, "layout");
  ctx.kernels.rope.table(ctx.stream, {positions.as<std::int32_t>(), frequencies, scale, table});
  return table;
}

Tensor position_scale_table(Context& ctx, const Tensor& positions, const PositionScale& growth,
                            std::int64_t head_size) {
  const std::vector<double> still(static_cast<std::size_t>(head_size / 2), 0.0);
  Tensor table = ctx.allocate(ctx.wide(), {positions.numel(), head_size}, "layout");
  ctx.kernels.rope.table(ctx.stream, {.positions = positions.as<std::int32_t>(),
                                      .frequencies = still,
                                      .cos_sin = table,
                                      .growth = growth});
  return table;
}

Var rope(Context& ctx, const Var& qkv, const RopeSpec& spec) {
  OpScope scope(ctx, "rope");
  BEV_CHECK(spec.cos_sin.shape()[0] == qkv.shape()[0], "rope: a table of ", spec.cos_sin.shape(),
            " for rows ", qkv.shape());
  auto apply = [spec](Context& to, const Tensor& x, bool inverse) {
    to.kernels.rope.apply(to.stream, {.x = x,
                                      .cos_sin = spec.cos_sin,
                                      .heads = spec.heads,
                                      .head_size = spec.head_size,
                                      .begin = spec.begin,
                                      .interleaved = spec.interleaved,
                                      .inverse = inverse});
  };
  apply(ctx, qkv.tensor, false);
  Var out = make_output(ctx, "rope", qkv.tensor, qkv.placement, qkv.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("rope", ctx.layer,
                   [apply, in = GradSlot(qkv), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Tensor dx = std::move(dy);
                     if (!dx.unique()) {
                       Tensor shared = std::move(dx);
                       dx = back.ctx.allocate(shared.dtype(), shared.shape(), "gradients");
                       back.ctx.kernels.cast(back.ctx.stream, shared, dx);
                     }
                     apply(back.ctx, dx, true);
                     back.add(in, std::move(dx));
                   });
  return out;
}

Var attention(Context& ctx, const Var& qkv, const AttentionRows& rows, const AttentionSpec& spec) {
  OpScope scope(ctx, "attention");
  check_rows(qkv, spec);
  std::int64_t stride = qkv.shape()[1];
  AttentionShape shape = attention_shape(ctx, spec, {stride, stride, stride}, rows.runs);
  set_dropout(ctx, rows, ctx.training ? spec.rule.dropout : 0, shape);
  AttentionResult forward = run_forward(ctx, qkv.tensor, shape, spec);
  bool wanted = qkv.tracked() || (spec.sinks.logits && spec.sinks.logits->trains);
  Var out = make_output(ctx, "attention", forward.out, qkv.placement, wanted);
  if (!out.tracked()) return out;
  if (spec.recompute) forward = {};
  ctx.tape->record("attention", ctx.layer,
                   [spec, shape, forward, saved = Saved(qkv), in = GradSlot(qkv),
                    result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Context& bctx = back.ctx;
                     Tensor kept = saved.get(bctx);
                     AttentionResult again =
                         spec.recompute ? run_forward(bctx, kept, shape, spec) : forward;
                     add_sink_gradient(back, spec, in.placement, again, dy);
                     Tensor dqkv = bctx.allocate(kept.dtype(), kept.shape(), "gradients");
                     Tensor delta = bctx.allocate(bctx.wide(), again.lse.shape(), "gradients");
                     FusedRows at = fused_rows(kept, spec), to = fused_rows(dqkv, spec);
                     bctx.kernels.attention.backward(bctx.stream, {.shape = shape,
                                                                   .q = at.q,
                                                                   .k = at.k,
                                                                   .v = at.v,
                                                                   .out = again.out,
                                                                   .dout = dy,
                                                                   .lse = again.lse,
                                                                   .delta = delta,
                                                                   .dq = to.q,
                                                                   .dk = to.k,
                                                                   .dv = to.v});
                     back.add(in, std::move(dqkv));
                   });
  return out;
}

Var cross_attention(Context& ctx, const Var& q, const Var& kv, std::vector<AttentionRun> runs,
                    const AttentionSpec& spec) {
  OpScope scope(ctx, "cross_attention");
  std::int64_t width = spec.k_columns() + spec.v_columns(), rows = q.shape()[0];
  BEV_CHECK(q.shape()[1] == spec.q_columns() && kv.shape()[1] == width, "cross_attention: queries ",
            q.shape(), " and keys ", kv.shape(), " for ", spec.q_heads, " and ", spec.kv_heads,
            " heads of ", spec.head_size, " and ", spec.v_head_size);
  BEV_CHECK(q.placement == kv.placement, ErrorKind::kInternal, "cross_attention: queries {",
            q.placement, "} and keys {", kv.placement, "}");
  auto shape_of = [spec, width](const Context& to, std::span<const AttentionRun> seen) {
    return attention_shape(to, spec, {spec.q_columns(), width, width}, seen);
  };
  auto values_of = [spec](const Tensor& of) { return of.view().address(spec.k_columns()); };
  AttentionResult result{ctx.allocate(ctx.dtype, {rows, spec.out_columns()}, "activations"),
                         ctx.allocate(ctx.wide(), {rows, spec.q_heads}, "activations")};
  ctx.kernels.attention.forward(ctx.stream, {.shape = shape_of(ctx, runs),
                                             .q = q.tensor.view().data,
                                             .k = kv.tensor.view().data,
                                             .v = values_of(kv.tensor),
                                             .out = result.out,
                                             .lse = result.lse});
  Var out =
      make_output(ctx, "cross_attention", result.out, q.placement, q.tracked() || kv.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record(
      "cross_attention", ctx.layer,
      [runs = std::move(runs), shape_of, values_of, result, queries = Saved(q), keys = Saved(kv),
       to_q = GradSlot(q), to_kv = GradSlot(kv), from = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(from);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        Tensor kept_q = queries.get(bctx), kept_kv = keys.get(bctx);
        Tensor dq = bctx.allocate(kept_q.dtype(), kept_q.shape(), "gradients");
        Tensor dkv = bctx.allocate(kept_kv.dtype(), kept_kv.shape(), "gradients");
        Tensor delta = bctx.allocate(bctx.wide(), result.lse.shape(), "gradients");
        // A document may have keys but no queries.
        bctx.kernels.fill(bctx.stream, dkv, 0);
        bctx.kernels.attention.backward(bctx.stream, {.shape = shape_of(bctx, runs),
                                                      .q = kept_q.view().data,
                                                      .k = kept_kv.view().data,
                                                      .v = values_of(kept_kv),
                                                      .out = result.out,
                                                      .dout = dy,
                                                      .lse = result.lse,
                                                      .delta = delta,
                                                      .dq = dq.view().data,
                                                      .dk = dkv.view().data,
                                                      .dv = values_of(dkv)});
        if (to_q.wanted()) back.add(to_q, std::move(dq));
        if (to_kv.wanted()) back.add(to_kv, std::move(dkv));
      });
  return out;
}

KeyPages DecodeStep::pages() const {
  return {block_table.as<std::int32_t>(), table_stride, block_tokens};
}

const AttentionRun* DecodeStep::current_runs() const {
  return device_runs.empty() ? nullptr : static_cast<const AttentionRun*>(device_runs.view().data);
}

std::vector<AttentionRun> DecodeStep::runs_in_batch() const {
  std::vector<AttentionRun> out = runs;
  for (AttentionRun& run : out) run.k_begin = run.q_begin;
  return out;
}

Var cached_attention(Context& ctx, const Var& qkv, const KvRows& cache, const DecodeStep& step,
                     const AttentionSpec& spec) {
  check_rows(qkv, spec);
  std::int64_t rows = qkv.shape()[0], stride = qkv.shape()[1];
  FusedRows at = fused_rows(qkv.tensor, spec);
  auto keep = [&](const void* from, const Tensor& to, std::int64_t width) {
    ctx.kernels.elementwise.copy_rows(ctx.stream, {.src = from,
                                                   .dst = to.view().data,
                                                   .dtype = ctx.dtype,
                                                   .rows = rows,
                                                   .columns = width,
                                                   .src_stride = stride,
                                                   .dst_stride = width,
                                                   .dst_rows = step.write_rows.as<std::int32_t>()});
  };
  keep(at.k, cache.keys, spec.k_columns());
  keep(at.v, cache.values, spec.v_columns());
  if (step.whole_prompts) {
    std::vector<AttentionRun> runs = step.runs_in_batch();
    AttentionShape shape = attention_shape(ctx, spec, {stride, stride, stride}, runs);
    AttentionResult result = run_forward(ctx, qkv.tensor, shape, spec);
    return make_output(ctx, "attention", std::move(result.out), qkv.placement, false);
  }
  AttentionShape shape =
      attention_shape(ctx, spec, {stride, spec.k_columns(), spec.v_columns()}, step.runs);
  AttentionResult result{ctx.allocate(ctx.dtype, {rows, spec.out_columns()}, "activations"),
                         ctx.allocate(ctx.wide(), {rows, spec.q_heads}, "activations")};
  ctx.kernels.attention.forward(ctx.stream, {.shape = shape,
                                             .q = at.q,
                                             .k = cache.keys.view().data,
                                             .v = cache.values.view().data,
                                             .out = result.out,
                                             .lse = result.lse,
                                             .device_runs = step.current_runs(),
                                             .pages = step.pages()});
  add_sinks(ctx, spec, result);
  return make_output(ctx, "attention", std::move(result.out), qkv.placement, false);
}

}  // namespace bev
