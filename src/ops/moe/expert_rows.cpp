#include "ops/moe/expert_rows.h"

#include "autograd/op_scope.h"
#include "kernels/device.h"
#include "kernels/moe.h"

namespace bev {

ExpertRows sort_rows(Context& ctx, const Tensor& choices, std::int64_t first, std::int64_t count) {
  OpScope scope(ctx, "sort_rows");
  ExpertRows rows;
  rows.topk = choices.shape()[1];
  std::int64_t slots = choices.numel();
  rows.order = ctx.allocate(Dtype::kI32, {slots}, "router");
  rows.place = ctx.allocate(Dtype::kI32, {slots}, "router");
  rows.offsets = ctx.allocate(Dtype::kI32, {count + 1}, "router");
  ctx.kernels.moe.sort_rows(ctx.stream, {.experts = choices,
                                         .first_expert = first,
                                         .order = rows.order,
                                         .place = rows.place,
                                         .offsets = rows.offsets});
  return rows;
}

namespace {
void fit(Context& ctx, ExpertRows& rows, std::int64_t count, std::int64_t block) {
  OpScope scope(ctx, "fit_rows");
  Tensor fitted = ctx.allocate(Dtype::kI32, {count}, "router");
  ctx.kernels.moe.fit_rows(ctx.stream, {.order = rows.order,
                                        .place = rows.place,
                                        .offsets = rows.offsets,
                                        .fitted = fitted,
                                        .block = block,
                                        .lost = ctx.lost_rows});
  rows.order = std::move(fitted);
}
}  // namespace

void fit_rows(Context& ctx, ExpertRows& rows, std::int64_t count) { fit(ctx, rows, count, 0); }

void fit_blocks(Context& ctx, ExpertRows& rows, std::int64_t block) {
  fit(ctx, rows, (rows.offsets.numel() - 1) * block, block);
}

std::int64_t count_rows(Context& ctx, const ExpertRows& rows, std::int64_t expected) {
  auto used = static_cast<std::int32_t>(expected);
  std::int64_t last = rows.offsets.numel() - 1;
  ctx.kernels.device.fetch(ctx.stream, rows.offsets.rows(last, last + 1), &used).wait();
  return used;
}

Tensor permute_rows(Context& ctx, const Tensor& x, const ExpertRows& rows, const char* tag) {
  Tensor out = ctx.allocate(x.dtype(), {rows.count(), x.shape()[1]}, tag);
  ctx.kernels.moe.permute_rows(ctx.stream, {.x = x,
                                            .rows = out,
                                            .order = rows.order.as<std::int32_t>(),
                                            .place = rows.place.as<std::int32_t>(),
                                            .topk = rows.topk});
  return out;
}

Tensor unpermute_rows(Context& ctx, const Tensor& x, const ExpertRows& rows, const char* tag) {
  std::int64_t tokens = rows.place.numel() / rows.topk;
  Tensor out = ctx.allocate(x.dtype(), {tokens, x.shape()[1]}, tag);
  ctx.kernels.moe.unpermute_rows(ctx.stream, {x, out, rows.place.as<std::int32_t>(), rows.topk});
  return out;
}

}  // namespace bev
