#include "ops/loss.h"

#include <algorithm>

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/gemm.h"
#include "kernels/loss.h"
#include "ops/copy_columns.h"
#include "ops/linear_products.h"

namespace bev {

namespace {

// Equal chunks, and where they are long, of whole tiles of a matrix product.
std::int64_t chunk_rows(std::int64_t tokens, std::int64_t row_bytes, std::int64_t chunk_bytes) {
  constexpr std::int64_t kTile = 256;
  std::int64_t rows =
      std::max<std::int64_t>(chunk_bytes / std::max<std::int64_t>(row_bytes, 1), 32);
  if (rows >= tokens) return std::max<std::int64_t>(tokens, 1);
  std::int64_t chunks = (tokens + rows - 1) / rows, even = (tokens + chunks - 1) / chunks;
  return even < 4 * kTile ? even : (even + kTile - 1) / kTile * kTile;
}

// Elements from one row of logits to the next. A probe looks at every number, and padding has none.
std::int64_t row_stride(const Context& ctx, std::int64_t vocabulary) {
  std::int64_t multiple = ctx.probe != nullptr ? 1 : ctx.kernels.loss.logits.row_multiple;
  return (vocabulary + multiple - 1) / multiple * multiple;
}

// Rows of logits that exist at a time.
std::int64_t rows_at_once(const Context& ctx, const HeadSpec& spec, std::int64_t tokens,
                          std::int64_t stride, Dtype dtype) {
  std::int64_t bytes =
      spec.chunk_bytes > 0 ? spec.chunk_bytes : ctx.kernels.loss.logits.chunk_bytes;
  return chunk_rows(tokens, stride * static_cast<std::int64_t>(size_of(dtype)), bytes);
}

std::int64_t vocabulary_begin(const Context& ctx, const Param& weight) {
  return shard_range(weight.shape[0], ctx.mesh.tp().size(), ctx.mesh.tp().rank()).begin;
}

void check_head(const Var& hidden, const HeadSpec& spec) {
  BEV_CHECK(spec.weight->split.dim == 0, ErrorKind::kInternal, "head ", spec.weight->name,
            ": the weight must be split over the vocabulary");
  BEV_CHECK(hidden.placement[Axis::kTp] == PlaceState::kCopied, ErrorKind::kInternal, "head ",
            spec.weight->name, ": the input {", hidden.placement, "} must be copied over tp");
  BEV_CHECK(hidden.shape()[1] == spec.weight->local[1], "head ", spec.weight->name, ": input ",
            hidden.shape(), " for a weight ", spec.weight->local);
}

// The statistics of one chunk over the whole vocabulary, then its losses and, wanted, its gradient.
void chunk_loss(Context& ctx, const LossChunk& chunk, const float* weights, const View& token_loss,
                bool with_gradient) {
  if (ctx.mesh.tp().size() == 1) {
    ctx.kernels.loss.whole(ctx.stream,
                           {chunk, weights, &ctx.step->loss_factor, token_loss, with_gradient});
    return;
  }
  std::int64_t rows = chunk.logits.shape[0];
  Tensor row_max = ctx.allocate(ctx.wide(), {rows}, "loss");
  Tensor stats = ctx.allocate(ctx.wide(), {2, rows}, "loss");
  Group& tp = ctx.mesh.tp();
  ctx.kernels.loss.row_max(ctx.stream, {chunk, row_max});
  tp.all_reduce(row_max, Reduction::kMax, "loss maximum").wait();
  ctx.kernels.loss.row_sum(ctx.stream, {chunk, row_max, stats});
  tp.all_reduce(stats, Reduction::kSum, "loss sums").wait();
  ctx.kernels.loss.gradient(ctx.stream, {chunk, row_max, stats, weights, &ctx.step->loss_factor,
                                         token_loss, with_gradient});
}

}  // namespace

LossResult lm_head_loss(Context& ctx, const Var& hidden, const LossTargets& targets,
                        const HeadSpec& spec) {
  OpScope scope(ctx, "lm_head_loss");
  check_head(hidden, spec);
  const Param& weight = *spec.weight;
  std::int64_t tokens = hidden.shape()[0], vocabulary = weight.local[0];
  bool wanted = ctx.tape != nullptr && (hidden.tracked() || weight.trains);
  LossResult result;
  result.token_loss = ctx.allocate(ctx.wide(), {tokens}, "loss");
  Tensor dhidden = wanted ? ctx.allocate(ctx.dtype, hidden.shape(), "gradients") : Tensor();

  {
    WeightLease lease = ctx.weights.use(weight);
    bool weight_grad = wanted && weight.trains;
    GradSink sink = weight_grad
                        ? ctx.grads.sink(weight, gradient_placement(weight, hidden.placement))
                        : GradSink{};
    double beta = sink.beta;
    const LogitsRule& rule = ctx.kernels.loss.logits;
    Dtype logits_dtype = rule.narrow ? ctx.dtype : ctx.wide();
    std::int64_t stride = row_stride(ctx, vocabulary);
    std::int64_t rows = rows_at_once(ctx, spec, tokens, stride, logits_dtype);
    std::int64_t chunks = std::max<std::int64_t>((tokens + rows - 1) / rows, 1);
    for (std::int64_t begin = 0; begin < tokens || (begin == 0 && weight_grad); begin += rows) {
      std::int64_t end = std::min(begin + rows, tokens);
      Tensor part = hidden.tensor.rows(begin, end);
      Tensor logits = ctx.allocate(logits_dtype, {end - begin, stride}, "logits");
      weight_product(ctx, weight, {part, lease.view, logits, false, true, 1, 0, {}, 0, vocabulary},
                     chunks);
      ctx.check("lm_head_loss", "logits", logits);
      LossChunk chunk{logits,
                      targets.targets.as<std::int32_t>() + begin,
                      vocabulary_begin(ctx, weight),
                      spec.logit_scale,
                      spec.softcap,
                      vocabulary};
      chunk_loss(ctx, chunk, targets.weights.as<float>() + begin,
                 result.token_loss.rows(begin, end).view(), wanted);
      if (!wanted) continue;
      Tensor dlogits = logits;
      if (ctx.dtype != logits_dtype) {
        dlogits = ctx.allocate(ctx.dtype, logits.shape(), "logits");
        ctx.kernels.cast(ctx.stream, logits, dlogits);
        logits = Tensor();
      }
      weight_product(
          ctx, weight,
          {dlogits, lease.view, dhidden.rows(begin, end), false, false, 1, 0, {}, vocabulary},
          chunks);
      if (weight_grad) {
        ctx.kernels.gemm.gemm(ctx.stream,
                              {dlogits, part, sink.view, true, false, 1, beta, {}, vocabulary});
        beta = 1;
      }
    }
    if (weight_grad) ctx.grads.done(weight, std::move(sink));
  }
  ctx.check("lm_head_loss", "token losses", result.token_loss);

  // The loss is a sum over this rank's tokens; the same on all tp ranks.
  Placement placement = hidden.placement.with(Axis::kTp, PlaceState::kReplicated);
  Tensor scalar = ctx.allocate(ctx.wide(), {1}, "loss");
  ctx.kernels.fill(ctx.stream, scalar, 0);
  result.loss = make_output(ctx, "lm_head_loss", std::move(scalar), placement, wanted);
  if (!result.loss.tracked()) return result;
  ctx.tape->record("lm_head_loss", ctx.layer,
                   [dhidden, in = GradSlot(hidden), out = GradSlot(result.loss)](Backward& back) {
                     if (back.take(out).empty()) return;
                     back.add(in, dhidden, in.placement.dual());
                   });
  return result;
}

namespace {
// hidden [T, H] times the weight, into rows of any length that are not shorter.
void head_product(Context& ctx, const Tensor& hidden, const HeadSpec& spec, const Tensor& logits) {
  WeightLease lease = ctx.weights.use(*spec.weight);
  ctx.kernels.gemm.gemm(
      ctx.stream, {hidden, lease.view, logits, false, true, 1, 0, {}, 0, spec.weight->local[0]});
}
}  // namespace

Tensor lm_head_logits(Context& ctx, const Var& hidden, const HeadSpec& spec) {
  check_head(hidden, spec);
  std::int64_t tokens = hidden.shape()[0], vocabulary = spec.weight->local[0];
  std::int64_t stride = row_stride(ctx, vocabulary);
  Tensor logits = ctx.allocate(ctx.wide(), {tokens, vocabulary}, "logits");
  if (stride == vocabulary) head_product(ctx, hidden.tensor, spec, logits);
  // Padded rows exist of a few tokens at a time: of all they would double the memory.
  std::int64_t rows = rows_at_once(ctx, spec, tokens, stride, ctx.wide());
  for (std::int64_t begin = 0; stride > vocabulary && begin < tokens; begin += rows) {
    std::int64_t end = std::min(begin + rows, tokens);
    Tensor padded = ctx.allocate(ctx.wide(), {end - begin, stride}, "logits");
    head_product(ctx, hidden.tensor.rows(begin, end), spec, padded);
    copy_columns(ctx, padded, 0, logits.rows(begin, end), 0, vocabulary);
  }
  if (spec.logit_scale == 1 && spec.softcap == 0) return logits;
  // The first pass of the loss applies them.
  Tensor row_max = ctx.allocate(ctx.wide(), {tokens}, "loss");
  LossChunk chunk{logits, nullptr, 0, spec.logit_scale, spec.softcap};
  ctx.kernels.loss.row_max(ctx.stream, {chunk, row_max});
  return logits;
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
    ctx.kernels.elementwise.copy_rows(
        ctx.stream,
        {parts.view().address(rows * columns.begin), whole.view().address(columns.begin),
         parts.dtype(), rows, columns.size(), columns.size(), vocabulary});
  }
  return whole;
}

}  // namespace bev
