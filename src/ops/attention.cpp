#include "ops/attention.h"

#include "autograd/op_scope.h"
#include "base/error.h"

namespace bev {

namespace {

struct FusedRows {
  void *q, *k, *v;
};
FusedRows fused_rows(const View& qkv, const AttentionSpec& spec) {
  std::int64_t d = spec.head_size;
  return {qkv.data, qkv.address(spec.q_heads * d), qkv.address((spec.q_heads + spec.kv_heads) * d)};
}

void check_rows(const Var& qkv, const AttentionSpec& spec) {
  std::int64_t width = (spec.q_heads + 2 * spec.kv_heads) * spec.head_size;
  BEV_CHECK(qkv.shape().ndim() == 2 && qkv.shape()[1] == width, "attention: rows of ", qkv.shape(),
            " for ", spec.q_heads, " + 2 x ", spec.kv_heads, " heads of ", spec.head_size);
  BEV_CHECK(qkv.placement[Axis::kTp] == PlaceState::kShard1, ErrorKind::kInternal,
            "attention: the input {", qkv.placement, "} must be split over heads");
}

struct AttentionResult {
  Tensor out, lse;
};
AttentionResult run_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape,
                            const AttentionSpec& spec) {
  std::int64_t rows = qkv.shape()[0];
  AttentionResult result{
      ctx.allocate(ctx.dtype, {rows, spec.q_heads * spec.head_size}, "activations"),
      ctx.allocate(ctx.wide(), {rows, spec.q_heads}, "activations")};
  FusedRows at = fused_rows(qkv, spec);
  ctx.kernels.attention.forward(ctx.stream, {shape, at.q, at.k, at.v, result.out, result.lse});
  return result;
}

}  // namespace

AttentionShape attention_shape(const Context& ctx, const AttentionSpec& spec, std::int64_t q_stride,
                               std::int64_t kv_stride, std::span<const AttentionRun> runs) {
  AttentionShape shape;
  shape.runs = runs;
  shape.q_heads = spec.q_heads;
  shape.kv_heads = spec.kv_heads;
  shape.head_size = spec.head_size;
  shape.q_stride = q_stride;
  shape.k_stride = shape.v_stride = kv_stride;
  shape.dtype = ctx.dtype;
  shape.scale = spec.scale;
  shape.softcap = spec.softcap;
  shape.window = spec.window;
  shape.causal = spec.causal;
  shape.head_offset = spec.head_offset;
  return shape;
}

void set_dropout(const Context& ctx, const AttentionRows& rows, double p, AttentionShape& shape) {
  shape.dropout = p;
  shape.random = {&ctx.step->random_key, rows.samples.as<std::int32_t>(),
                  rows.sample_positions.as<std::int32_t>(),
                  random_stream(ctx.layer, RandomUse::kAttentionDropout)};
}

Tensor rope_table(Context& ctx, const Tensor& positions, std::span<const double> frequencies,
                  double scale) {
  auto width = static_cast<std::int64_t>(2 * frequencies.size());
  Tensor table = ctx.allocate(ctx.wide(), {positions.numel(), width}, "layout");
  ctx.kernels.attention.rope_table(ctx.stream,
                                   {positions.as<std::int32_t>(), frequencies, scale, table});
  return table;
}

Var rope(Context& ctx, const Var& qkv, const RopeSpec& spec) {
  OpScope scope(ctx, "rope");
  BEV_CHECK(spec.cos_sin.shape()[0] == qkv.shape()[0], "rope: a table of ", spec.cos_sin.shape(),
            " for rows ", qkv.shape());
  auto apply = [spec](Context& to, const Tensor& x, bool inverse) {
    to.kernels.attention.rope_apply(
        to.stream, {x, spec.cos_sin, spec.heads, spec.head_size, spec.interleaved, inverse});
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
                       back.ctx.kernels.elementwise.cast(back.ctx.stream, shared, dx);
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
  AttentionShape shape = attention_shape(ctx, spec, stride, stride, rows.runs);
  set_dropout(ctx, rows, ctx.training ? spec.dropout : 0, shape);
  AttentionResult forward = run_forward(ctx, qkv.tensor, shape, spec);
  Var out = make_output(ctx, "attention", forward.out, qkv.placement, qkv.tracked());
  if (!out.tracked()) return out;
  if (spec.recompute) forward = {};
  ctx.tape->record(
      "attention", ctx.layer,
      [spec, shape, forward, saved = Saved(qkv), in = GradSlot(qkv),
       result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        Tensor kept = saved.get(bctx);
        AttentionResult again = spec.recompute ? run_forward(bctx, kept, shape, spec) : forward;
        Tensor dqkv = bctx.allocate(kept.dtype(), kept.shape(), "gradients");
        Tensor delta = bctx.allocate(bctx.wide(), again.lse.shape(), "gradients");
        FusedRows at = fused_rows(kept, spec), to = fused_rows(dqkv, spec);
        bctx.kernels.attention.backward(bctx.stream, {shape, at.q, at.k, at.v, again.out, dy,
                                                      again.lse, delta, to.q, to.k, to.v});
        back.add(in, std::move(dqkv));
      });
  return out;
}

Var cached_attention(Context& ctx, const Var& qkv, const KvRows& cache, const DecodeStep& step,
                     const AttentionSpec& spec) {
  check_rows(qkv, spec);
  std::int64_t rows = qkv.shape()[0], stride = qkv.shape()[1];
  std::int64_t width = spec.kv_heads * spec.head_size;
  FusedRows at = fused_rows(qkv.tensor, spec);
  auto keep = [&](const void* from, const Tensor& to) {
    ctx.kernels.elementwise.copy_rows(ctx.stream,
                                      {from, to.view().data, ctx.dtype, rows, width, stride, width,
                                       step.write_rows.as<std::int32_t>()});
  };
  keep(at.k, cache.keys);
  keep(at.v, cache.values);
  AttentionShape shape = attention_shape(ctx, spec, stride, width, step.runs);
  Tensor out = ctx.allocate(ctx.dtype, {rows, spec.q_heads * spec.head_size}, "activations");
  Tensor lse = ctx.allocate(ctx.wide(), {rows, spec.q_heads}, "activations");
  const std::int32_t* counts =
      step.key_counts.empty() ? nullptr : step.key_counts.as<std::int32_t>();
  ctx.kernels.attention.forward(ctx.stream, {shape, at.q, cache.keys.view().data,
                                             cache.values.view().data, out, lse, counts});
  return make_output(ctx, "attention", std::move(out), qkv.placement, false);
}

}  // namespace bev
