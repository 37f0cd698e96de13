#include "ops/loss.h"

#include <algorithm>

#include "autograd/op_scope.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/loss.h"
#include "ops/copy_columns.h"
#include "ops/head_chunks.h"
#include "ops/logit_loss.h"

namespace bev {

namespace {

// The cross entropy, or `loss` without targets. Gradients are handed out by the backward.
LossResult head_loss(Context& ctx, const char* name, const Var& hidden, const LossTargets& targets,
                     const HeadSpec& spec, const LogitLoss* loss) {
  OpScope scope(ctx, name);
  check_head(hidden, spec);
  bool wanted = ctx.tape != nullptr &&
                (hidden.tracked() || in_use(ctx, *spec.weight).trains || spec.bias != nullptr);
  LossResult result;
  if (loss == nullptr) result.token_loss = ctx.allocate(ctx.wide(), {hidden.shape()[0]}, "loss");
  Tensor dhidden;
  if (wanted && hidden.tracked()) dhidden = ctx.allocate(ctx.dtype, hidden.shape(), "gradients");
  cross_entropy(ctx, spec,
                {.op = name,
                 .hidden = hidden.tensor,
                 .placement = hidden.placement,
                 .targets = targets.targets,
                 .token_loss = result.token_loss,
                 .with_gradient = wanted,
                 .dhidden = dhidden,
                 .weights = targets.weights,
                 .loss_factor = &ctx.step->loss_factor,
                 .loss = loss});
  if (loss == nullptr) ctx.check(name, "token losses", result.token_loss);

  // The loss is a sum over this rank's tokens, the same on all tp ranks.
  Placement placement = hidden.placement.with(Axis::kTp, PlaceState::kReplicated);
  Tensor scalar = ctx.allocate(ctx.wide(), {1}, "loss");
  ctx.kernels.fill(ctx.stream, scalar, 0);
  result.loss = make_output(ctx, name, std::move(scalar), placement, wanted);
  if (!result.loss.tracked()) return result;
  ctx.tape->record(name, ctx.layer,
                   [dhidden, in = GradSlot(hidden), out = GradSlot(result.loss)](Backward& back) {
                     if (back.take(out).empty()) return;
                     back.add(in, dhidden, in.placement.dual());
                   });
  return result;
}

}  // namespace

LossResult lm_head_loss(Context& ctx, const Var& hidden, const LossTargets& targets,
                        const HeadSpec& spec) {
  return head_loss(ctx, "lm_head_loss", hidden, targets, spec, nullptr);
}

Var logit_loss(Context& ctx, const Var& hidden, const HeadSpec& spec, const LogitLoss& loss) {
  return head_loss(ctx, "logit_loss", hidden, {}, spec, &loss).loss;
}

namespace {
// logits = hidden [T, H] times the weight; the row stride of logits may exceed V.
void head_gemm(Context& ctx, const Tensor& hidden, const HeadSpec& spec, const Tensor& logits) {
  WeightLease lease = ctx.weights.use(in_use(ctx, *spec.weight));
  ctx.kernels.gemm.gemm(ctx.stream, {.a = hidden,
                                     .b = lease.view,
                                     .c = logits,
                                     .transpose_b = true,
                                     .c_columns = spec.weight->local[0]});
  add_head_bias(ctx, spec, logits);
}
}  // namespace

Tensor lm_head_logits(Context& ctx, const Var& hidden, const HeadSpec& spec) {
  check_head(hidden, spec);
  std::int64_t tokens = hidden.shape()[0], vocabulary = spec.weight->local[0];
  auto [rows, stride] = logits_chunks(ctx, spec, tokens, ctx.wide());
  Tensor logits = ctx.allocate(ctx.wide(), {tokens, vocabulary}, "logits");
  if (stride == vocabulary) head_gemm(ctx, hidden.tensor, spec, logits);
  // Only a chunk of padded logits exists at a time: padding all of them would double the memory.
  for (std::int64_t begin = 0; stride > vocabulary && begin < tokens; begin += rows) {
    std::int64_t end = std::min(begin + rows, tokens);
    Tensor padded = ctx.allocate(ctx.wide(), {end - begin, stride}, "logits");
    head_gemm(ctx, hidden.tensor.rows(begin, end), spec, padded);
    copy_columns(ctx, padded, 0, logits.rows(begin, end), 0, vocabulary);
  }
  if (spec.logit_scale == 1 && spec.softcap == 0) return logits;
  // row_max of the loss applies scale and softcap to the logits.
  Tensor row_max = ctx.allocate(ctx.wide(), {tokens}, "loss");
  LossChunk chunk{logits, nullptr, 0, spec.logit_scale, spec.softcap};
  ctx.kernels.loss.row_max(ctx.stream, {chunk, row_max});
  return logits;
}

Tensor raw_logits(Context& ctx, const Var& hidden, const HeadSpec& spec) {
  check_head(hidden, spec);
  std::int64_t tokens = hidden.shape()[0];
  Tensor logits = ctx.allocate(
      ctx.wide(), {tokens, logits_chunks(ctx, spec, tokens, ctx.wide()).stride}, "logits");
  head_gemm(ctx, hidden.tensor, spec, logits);
  return logits;
}

Tensor final_logits(Context& ctx, const Tensor& raw, const HeadSpec& spec) {
  std::int64_t tokens = raw.shape()[0], vocabulary = spec.weight->local[0];
  bool changed = spec.logit_scale != 1 || spec.softcap != 0;
  if (raw.shape()[1] == vocabulary && !changed) return raw;
  Tensor logits = ctx.allocate(raw.dtype(), {tokens, vocabulary}, "logits");
  copy_columns(ctx, raw, 0, logits, 0, vocabulary);
  if (changed) {
    Tensor row_max = ctx.allocate(ctx.wide(), {tokens}, "loss");
    LossChunk chunk{logits, nullptr, 0, spec.logit_scale, spec.softcap};
    ctx.kernels.loss.row_max(ctx.stream, {chunk, row_max});
  }
  return logits;
}

void token_losses(Context& ctx, const Tensor& raw, const std::int32_t* targets,
                  const HeadSpec& spec, const View& losses) {
  const Group& tp = ctx.mesh.tp();
  vocabulary_losses(
      ctx, {.chunk = {.logits = raw,
                      .targets = targets,
                      .first_row = shard_range(spec.weight->shape[0], tp.size(), tp.rank()).begin,
                      .logit_scale = spec.logit_scale,
                      .softcap = spec.softcap,
                      .logits_in_row = spec.weight->local[0]},
            .token_loss = losses});
}

Tensor gather_vocabulary(Context& ctx, Tensor part, std::int64_t vocabulary) {
  Group& tp = ctx.mesh.tp();
  if (tp.size() == 1) return part;
  std::int64_t rows = part.shape()[0];
  Tensor parts = ctx.allocate(part.dtype(), {rows * vocabulary}, "logits");
  tp.all_gather(part, parts, "logits").wait();
  part = Tensor();
  Tensor whole = ctx.allocate(parts.dtype(), {rows, vocabulary}, "logits");
  for (int rank = 0; rank < tp.size(); ++rank) {
    Range columns = shard_range(vocabulary, tp.size(), rank);
    ctx.kernels.elementwise.copy_rows(ctx.stream,
                                      {.src = parts.view().address(rows * columns.begin),
                                       .dst = whole.view().address(columns.begin),
                                       .dtype = parts.dtype(),
                                       .rows = rows,
                                       .columns = columns.size(),
                                       .src_stride = columns.size(),
                                       .dst_stride = vocabulary});
  }
  return whole;
}

}  // namespace bev
