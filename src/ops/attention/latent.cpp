#include "ops/attention/latent.h"

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/latent.h"
#include "ops/copy_columns.h"

namespace bev {

namespace {

// Returns the gradient, or zeros if there is none.
Tensor or_zeros(Context& ctx, Tensor gradient, const Shape& shape) {
  if (!gradient.empty()) return gradient;
  Tensor zeros = ctx.allocate(ctx.dtype, shape, "gradients");
  ctx.kernels.fill(ctx.stream, zeros, 0);
  return zeros;
}

void check_columns(const char* what, const Var& x, std::int64_t columns) {
  BEV_CHECK(x.shape().ndim() == 2 && x.shape()[1] == columns, "latent attention: ", what, " ",
            x.shape(), " for ", columns, " columns");
}

}  // namespace

LatentParts split_latent(Context& ctx, const Var& x, const LatentSpec& spec) {
  OpScope scope(ctx, "split_latent");
  check_columns("latents", x, spec.latent_size + spec.rope_size);
  std::int64_t rows = x.shape()[0];
  Tensor latent = ctx.allocate(x.dtype(), {rows, spec.latent_size}, "activations");
  Tensor key = ctx.allocate(x.dtype(), {rows, spec.rope_size}, "activations");
  copy_columns(ctx, x.tensor, 0, latent, 0, spec.latent_size);
  copy_columns(ctx, x.tensor, spec.latent_size, key, 0, spec.rope_size);
  LatentParts parts{make_output(ctx, "split_latent", latent, x.placement, x.tracked()),
                    make_output(ctx, "split_latent", key, x.placement, x.tracked())};
  if (!parts.latent.tracked()) return parts;
  ctx.tape->record("split_latent", ctx.layer,
                   [spec, rows, in = GradSlot(x), to_latent = GradSlot(parts.latent),
                    to_key = GradSlot(parts.rope_key)](Backward& back) {
                     Context& bctx = back.ctx;
                     Tensor first = back.take(to_latent), second = back.take(to_key);
                     if (first.empty() && second.empty()) return;
                     first = or_zeros(bctx, std::move(first), {rows, spec.latent_size});
                     second = or_zeros(bctx, std::move(second), {rows, spec.rope_size});
                     Tensor dx = bctx.allocate(
                         first.dtype(), {rows, spec.latent_size + spec.rope_size}, "gradients");
                     copy_columns(bctx, first, 0, dx, 0, spec.latent_size);
                     copy_columns(bctx, second, 0, dx, spec.latent_size, spec.rope_size);
                     back.add(in, std::move(dx));
                   });
  return parts;
}

Var join_latent_heads(Context& ctx, const Var& q, const Var& kv, const Var& rope_key,
                      const LatentSpec& spec) {
  OpScope scope(ctx, "join_latent_heads");
  check_columns("queries", q, spec.heads * spec.qk_size());
  check_columns("keys and values", kv, spec.heads * (spec.nope_size + spec.v_size));
  check_columns("rotated keys", rope_key, spec.rope_size);
  BEV_CHECK(q.placement[Axis::kTp] == PlaceState::kShard1 && q.placement == kv.placement &&
                rope_key.placement == q.placement.with(Axis::kTp, PlaceState::kCopied),
            ErrorKind::kInternal, "latent attention: heads {", q.placement, "} and {", kv.placement,
            "} with a key {", rope_key.placement, "}");
  auto args = [spec](const Tensor& queries, const Tensor& up, const Tensor& key,
                     const Tensor& rows) {
    return LatentHeadsArgs{queries,        up,         key, rows, spec.heads, spec.nope_size,
                           spec.rope_size, spec.v_size};
  };
  std::int64_t tokens = q.shape()[0];
  Shape shape{tokens, spec.heads * (2 * spec.qk_size() + spec.v_size)};
  Tensor rows = ctx.allocate(q.dtype(), shape, "activations");
  ctx.kernels.latent.join(ctx.stream, args(q.tensor, kv.tensor, rope_key.tensor, rows));
  Var out = make_output(ctx, "join_latent_heads", std::move(rows), q.placement,
                        q.tracked() || kv.tracked() || rope_key.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("join_latent_heads", ctx.layer,
                   [args, q_shape = q.shape(), kv_shape = kv.shape(), key_shape = rope_key.shape(),
                    to_q = GradSlot(q), to_kv = GradSlot(kv), to_key = GradSlot(rope_key),
                    result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Context& bctx = back.ctx;
                     Tensor dq = bctx.allocate(dy.dtype(), q_shape, "gradients");
                     Tensor dkv = bctx.allocate(dy.dtype(), kv_shape, "gradients");
                     Tensor dkey = bctx.allocate(dy.dtype(), key_shape, "gradients");
                     bctx.kernels.latent.split(bctx.stream, args(dq, dkv, dkey, dy));
                     if (to_q.wanted()) back.add(to_q, std::move(dq));
                     if (to_kv.wanted()) back.add(to_kv, std::move(dkv));
                     if (to_key.wanted()) back.add(to_key, std::move(dkey));
                   });
  return out;
}

void keep_latents(Context& ctx, const LatentRows& rows, const Tensor& cache, const DecodeStep& step,
                  const LatentSpec& spec) {
  auto keep = [&](const Var& from, std::int64_t begin, std::int64_t columns) {
    ctx.kernels.elementwise.copy_rows(ctx.stream, {.src = from.tensor.view().data,
                                                   .dst = cache.view().address(begin),
                                                   .dtype = ctx.dtype,
                                                   .rows = from.shape()[0],
                                                   .columns = columns,
                                                   .src_stride = columns,
                                                   .dst_stride = cache.shape()[1],
                                                   .dst_rows = step.write_rows.as<std::int32_t>()});
  };
  keep(rows.latent, 0, spec.latent_size);
  keep(rows.rope_key, spec.latent_size, spec.rope_size);
}

namespace {

// Weight absorption: maps queries to latent space. The A dims of each head are multiplied by its
// part of kv_up; the rotated dims are copied.
Tensor absorb_queries(Context& ctx, const Tensor& q, const View& kv_up, const LatentSpec& spec) {
  std::int64_t rows = q.shape()[0], width = spec.latent_size + spec.rope_size;
  Tensor out = ctx.allocate(q.dtype(), {rows, spec.heads * width}, "activations");
  HeadGemmArgs args;
  args.x = q.view().data, args.weight = kv_up.data, args.y = out.view().data;
  args.dtype = q.dtype();
  args.rows = rows, args.heads = spec.heads;
  args.inner = spec.nope_size, args.outer = spec.latent_size;
  args.x_stride = q.shape()[1], args.x_step = spec.qk_size();
  args.y_stride = out.shape()[1], args.y_step = width;
  args.weight_step = (spec.nope_size + spec.v_size) * spec.latent_size;
  ctx.kernels.latent.head_gemm(ctx.stream, args);
  // The heads of all rows lie at equal distances.
  ctx.kernels.elementwise.copy_rows(ctx.stream, {.src = q.view().address(spec.nope_size),
                                                 .dst = out.view().address(spec.latent_size),
                                                 .dtype = q.dtype(),
                                                 .rows = rows * spec.heads,
                                                 .columns = spec.rope_size,
                                                 .src_stride = spec.qk_size(),
                                                 .dst_stride = width});
  return out;
}

// Maps attention-weighted latents to values.
Tensor expand_values(Context& ctx, const Tensor& latents, const View& kv_up,
                     const LatentSpec& spec) {
  std::int64_t rows = latents.shape()[0];
  Tensor out = ctx.allocate(latents.dtype(), {rows, spec.heads * spec.v_size}, "activations");
  HeadGemmArgs args;
  args.x = latents.view().data, args.y = out.view().data;
  args.weight = kv_up.address(spec.nope_size * spec.latent_size);
  args.dtype = latents.dtype();
  args.rows = rows, args.heads = spec.heads;
  args.inner = spec.latent_size, args.outer = spec.v_size;
  args.x_stride = latents.shape()[1], args.x_step = spec.latent_size;
  args.y_stride = out.shape()[1], args.y_step = spec.v_size;
  args.weight_step = (spec.nope_size + spec.v_size) * spec.latent_size;
  args.transpose = true;
  ctx.kernels.latent.head_gemm(ctx.stream, args);
  return out;
}

}  // namespace

Var cached_latent_attention(Context& ctx, const LatentRows& rows, const Param& kv_up,
                            const Tensor& cache, const DecodeStep& step,
                            const AttentionSpec& attention, const LatentSpec& spec) {
  check_columns("queries", rows.q, spec.heads * spec.qk_size());
  WeightLease weight = ctx.weights.use(kv_up);
  Tensor q = absorb_queries(ctx, rows.q.tensor, weight.view, spec);
  // All queries share one key head; its value is the latent part of the key (MQA).
  AttentionSpec latents = attention;
  latents.kv_heads = 1;
  latents.head_size = spec.latent_size + spec.rope_size;
  latents.v_head_size = spec.latent_size;
  std::int64_t stride = cache.shape()[1];
  AttentionShape shape = attention_shape(ctx, latents, {q.shape()[1], stride, stride}, step.runs);
  AttentionResult result{
      ctx.allocate(ctx.dtype, {q.shape()[0], latents.out_columns()}, "activations"),
      ctx.allocate(ctx.wide(), {q.shape()[0], spec.heads}, "activations")};
  ctx.kernels.attention.forward(ctx.stream, {.shape = shape,
                                             .q = q.view().data,
                                             .k = cache.view().data,
                                             .v = cache.view().data,
                                             .out = result.out,
                                             .lse = result.lse,
                                             .device_runs = step.current_runs(),
                                             .pages = step.pages()});
  add_sinks(ctx, latents, result);
  return make_output(ctx, "latent attention", expand_values(ctx, result.out, weight.view, spec),
                     rows.q.placement, false);
}

}  // namespace bev
