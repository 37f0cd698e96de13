// GQA with more tensor-parallel ranks than kv heads: all-gather of keys and values within a kv
// group.
#include "autograd/op_scope.h"
#include "ops/copy_columns.h"
#include "ops/parallel_linear.h"

namespace bev {

namespace {

// Copies between rows q | k | v with whole keys and values and the parts of k | v in the order of
// kv ranks.
void copy_keys(Context& ctx, const Tensor& rows, const Tensor& parts, std::int64_t q_columns,
               bool into_rows) {
  std::int64_t n = ctx.mesh.group(MeshGroup::kKv).size(), tokens = rows.shape()[0];
  std::int64_t stride = rows.shape()[1], head = (stride - q_columns) / 2, part = head / n;
  for (std::int64_t member = 0; member < n; ++member) {
    for (std::int64_t half = 0; half < 2; ++half) {
      std::byte* whole = rows.view().address(q_columns + half * head + member * part);
      std::byte* cut = parts.view().address(member * tokens * 2 * part + half * part);
      CopyRowsArgs args{cut, whole, rows.dtype(), tokens, part, 2 * part, stride};
      if (!into_rows) args = {whole, cut, rows.dtype(), tokens, part, stride, 2 * part};
      ctx.kernels.elementwise.copy_rows(ctx.stream, args);
    }
  }
}

}  // namespace

Var share_keys(Context& ctx, const Var& qkv, std::int64_t q_columns) {
  OpScope scope(ctx, "share_keys");
  Group& kv = ctx.mesh.group(MeshGroup::kKv);
  // Width of this rank's k | v.
  std::int64_t tokens = qkv.shape()[0], part = qkv.shape()[1] - q_columns;
  Tensor own = ctx.allocate(qkv.dtype(), {tokens, part}, "activations");
  copy_columns(ctx, qkv.tensor, q_columns, own, 0, part);
  Tensor parts = ctx.allocate(qkv.dtype(), {kv.size() * tokens * part}, "activations");
  kv.all_gather(own.view().flat(), parts, "keys and values").wait();
  Tensor rows = ctx.allocate(qkv.dtype(), {tokens, q_columns + kv.size() * part}, "activations");
  copy_columns(ctx, qkv.tensor, 0, rows, 0, q_columns);
  copy_keys(ctx, rows, parts, q_columns, true);
  Var out = make_output(ctx, "share_keys", std::move(rows), qkv.placement, qkv.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record(
      "share_keys", ctx.layer,
      [q_columns, part, in = GradSlot(qkv), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Context& bctx = back.ctx;
        // Each rank has only the gradient from its own queries, so the parts are summed.
        Group& group = bctx.mesh.group(MeshGroup::kKv);
        std::int64_t rows_count = dy.shape()[0];
        Tensor partial = bctx.allocate(dy.dtype(), {group.size() * rows_count * part}, "gradients");
        copy_keys(bctx, dy, partial, q_columns, false);
        Tensor sum = bctx.allocate(dy.dtype(), {rows_count, part}, "gradients");
        group.reduce_scatter(partial, sum.view().flat(), "gradient of keys and values").wait();
        Tensor dx = bctx.allocate(dy.dtype(), {rows_count, q_columns + part}, "gradients");
        copy_columns(bctx, dy, 0, dx, 0, q_columns);
        copy_columns(bctx, sum, 0, dx, q_columns, part);
        back.add(in, std::move(dx));
      });
  return out;
}

}  // namespace bev
