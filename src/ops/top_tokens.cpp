#include "ops/top_tokens.h"

#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/sampling.h"
#include "ops/converted.h"

namespace bev {

void find_top_tokens(Context& ctx, const Tensor& raw, const Tensor& logits, const HeadSpec& spec,
                     const TopTokens& top) {
  const std::int64_t rows = top.ids.shape()[0];
  ctx.kernels.sampling.top_logits(ctx.stream,
                                  {.logits = logits, .values = top.values, .ids = top.ids});
  Tensor first = ctx.allocate(Dtype::kI32, {rows}, "logits");
  ctx.kernels.elementwise.copy_rows(ctx.stream, {.src = top.ids.view().data,
                                                 .dst = first.view().data,
                                                 .dtype = Dtype::kI32,
                                                 .rows = rows,
                                                 .columns = 1,
                                                 .src_stride = top.ids.shape()[1],
                                                 .dst_stride = 1});
  Tensor copy = ctx.allocate(raw.dtype(), raw.shape(), "logits");
  ctx.kernels.device.copy(ctx.stream, raw, copy);
  token_losses(ctx, copy, first.as<std::int32_t>(), spec, top.first_losses);
}

void find_top_tokens(Context& ctx, const Tensor& raw, const HeadSpec& spec, const TopTokens& top) {
  Tensor own = final_logits(ctx, converted(ctx, raw, ctx.wide(), "logits"), spec);
  Tensor logits = gather_vocabulary(ctx, std::move(own), spec.weight->shape[0]);
  find_top_tokens(ctx, raw, logits, spec, top);
}

}  // namespace bev
