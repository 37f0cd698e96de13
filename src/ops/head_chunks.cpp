#include "ops/head_chunks.h"

#include <algorithm>

#include "base/divide.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/loss.h"
#include "ops/linear_gemms.h"

namespace bev {

void check_head(const Var& hidden, const HeadSpec& spec) {
  BEV_CHECK(spec.weight->split.dim == 0, ErrorKind::kInternal, "head ", spec.weight->name,
            ": the weight must be split over the vocabulary");
  BEV_CHECK(hidden.placement[Axis::kTp] == PlaceState::kCopied, ErrorKind::kInternal, "head ",
            spec.weight->name, ": the input {", hidden.placement, "} must be copied over tp");
  BEV_CHECK(hidden.shape()[1] == spec.weight->local[1], "head ", spec.weight->name, ": input ",
            hidden.shape(), " for a weight ", spec.weight->local);
}

void add_head_bias(Context& ctx, const HeadSpec& spec, const Tensor& logits) {
  if (spec.bias == nullptr || logits.numel() == 0) return;
  WeightLease lease = ctx.weights.use(*spec.bias);
  Tensor row = ctx.allocate(logits.dtype(), {spec.bias->local[0]}, "logits");
  ctx.kernels.cast(ctx.stream, lease.view, row);
  ctx.kernels.elementwise.add_rows(ctx.stream, logits, row);
}

namespace {

// Chunks of equal size; long ones are multiples of a GEMM tile.
std::int64_t chunk_rows(std::int64_t tokens, std::int64_t row_bytes, std::int64_t chunk_bytes) {
  constexpr std::int64_t kTile = 256;
  std::int64_t rows =
      std::max<std::int64_t>(chunk_bytes / std::max<std::int64_t>(row_bytes, 1), 32);
  if (rows >= tokens) return std::max<std::int64_t>(tokens, 1);
  std::int64_t chunks = ceil_div(tokens, rows), even = ceil_div(tokens, chunks);
  return even < 4 * kTile ? even : round_up(even, kTile);
}

}  // namespace

LogitsChunks logits_chunks(const Context& ctx, const HeadSpec& spec, std::int64_t tokens,
                           Dtype dtype) {
  const LogitsRule& rule = ctx.kernels.loss.logits;
  // A probe inspects every element, and padding is uninitialised; a bias has no padding.
  std::int64_t multiple = ctx.probe != nullptr || spec.bias != nullptr ? 1 : rule.row_multiple;
  std::int64_t stride = round_up(spec.weight->local[0], multiple);
  std::int64_t bytes = spec.chunk_bytes > 0 ? spec.chunk_bytes : rule.chunk_bytes;
  auto row_bytes = stride * static_cast<std::int64_t>(size_of(dtype));
  return {chunk_rows(tokens, row_bytes, bytes), stride};
}

void vocabulary_losses(Context& ctx, const LossWholeArgs& args) {
  Group& tp = ctx.mesh.tp();
  if (tp.size() == 1) return ctx.kernels.loss.whole(ctx.stream, args);
  std::int64_t rows = args.chunk.logits.shape[0];
  Tensor row_max = ctx.allocate(ctx.wide(), {rows}, "loss");
  Tensor stats = ctx.allocate(ctx.wide(), {2, rows}, "loss");
  ctx.kernels.loss.row_max(ctx.stream, {args.chunk, row_max});
  tp.all_reduce(row_max, Reduction::kMax, "loss maximum").wait();
  ctx.kernels.loss.row_sum(ctx.stream, {args.chunk, row_max, stats});
  tp.all_reduce(stats, Reduction::kSum, "loss sums").wait();
  ctx.kernels.loss.gradient(ctx.stream, {.chunk = args.chunk,
                                         .row_max = row_max,
                                         .stats = stats,
                                         .weights = args.weights,
                                         .loss_factor = args.loss_factor,
                                         .token_loss = args.token_loss,
                                         .with_gradient = args.with_gradient});
}

namespace {

// One pass over all chunks, which holds the lease of the weight and the sink of its gradient.
class HeadRun {
 public:
  HeadRun(Context& ctx, const HeadSpec& spec, const CrossEntropyPass& pass)
      : ctx_(ctx),
        spec_(spec),
        pass_(pass),
        weight_(in_use(ctx, *spec.weight)),
        vocabulary_(weight_.local[0]),
        lease_(ctx.weights.use(weight_)),
        wgrad_(pass.with_gradient && weight_.trains),
        bias_wgrad_(pass.with_gradient && spec.bias != nullptr && spec.bias->trains) {
    if (bias_wgrad_) {
      bias_sink_ = ctx.grads.sink(*spec.bias, gradient_placement(*spec.bias, pass.placement));
      bias_beta_ = bias_sink_.beta;
    }
    if (!wgrad_) return;
    sink_ = ctx.grads.sink(weight_, gradient_placement(weight_, pass.placement));
    beta_ = sink_.beta;
  }

  void run() {
    std::int64_t tokens = pass_.hidden.shape()[0];
    Dtype dtype = ctx_.kernels.loss.logits.narrow ? ctx_.dtype : ctx_.wide();
    LogitsChunks chunks = logits_chunks(ctx_, spec_, tokens, dtype);
    count_ = std::max<std::int64_t>(ceil_div(tokens, chunks.rows), 1);
    // Without tokens, an empty chunk still sets the weight gradient.
    for (std::int64_t begin = 0; begin < tokens || (begin == 0 && (wgrad_ || bias_wgrad_));
         begin += chunks.rows) {
      Range rows{begin, std::min(begin + chunks.rows, tokens)};
      Tensor logits = ctx_.allocate(dtype, {rows.size(), chunks.stride}, "logits");
      compute_logits(rows, logits);
      if (pass_.top != nullptr && rows.size() > 0) {
        find_top_tokens(ctx_, logits, spec_, pass_.top->rows(rows.begin, rows.end));
      }
      compute_losses(rows, logits);
      if (pass_.with_gradient) compute_gradients(rows, std::move(logits));
    }
    if (wgrad_) ctx_.grads.done(weight_, std::move(sink_));
    if (bias_wgrad_) ctx_.grads.done(*spec_.bias, std::move(bias_sink_));
  }

 private:
  void compute_logits(Range rows, const Tensor& logits) {
    weight_gemm(ctx_, weight_,
                {.a = pass_.hidden.rows(rows.begin, rows.end),
                 .b = lease_.view,
                 .c = logits,
                 .transpose_b = true,
                 .c_columns = vocabulary_},
                count_ * pass_.passes);
    add_head_bias(ctx_, spec_, logits);
    ctx_.check(pass_.op, "logits", logits);
  }

  void compute_losses(Range rows, const Tensor& logits) {
    if (pass_.loss != nullptr) return (*pass_.loss)(rows, logits, pass_.with_gradient);
    const Group& tp = ctx_.mesh.tp();
    LossChunk chunk{logits,
                    pass_.targets.as<std::int32_t>() + rows.begin,
                    shard_range(weight_.shape[0], tp.size(), tp.rank()).begin,
                    spec_.logit_scale,
                    spec_.softcap,
                    vocabulary_};
    View token_loss = pass_.token_loss.view().rows(rows.begin, rows.end), weights;
    if (pass_.with_gradient) weights = pass_.weights.view().rows(rows.begin, rows.end);
    vocabulary_losses(ctx_, {.chunk = chunk,
                             .weights = weights,
                             .loss_factor = pass_.loss_factor,
                             .token_loss = token_loss,
                             .with_gradient = pass_.with_gradient});
  }

  void compute_gradients(Range rows, Tensor dlogits) {
    if (dlogits.dtype() != ctx_.dtype) {
      Tensor narrow = ctx_.allocate(ctx_.dtype, dlogits.shape(), "logits");
      ctx_.kernels.cast(ctx_.stream, dlogits, narrow);
      dlogits = std::move(narrow);
    }
    if (!pass_.dhidden.empty()) {
      weight_gemm(ctx_, weight_,
                  {.a = dlogits,
                   .b = lease_.view,
                   .c = pass_.dhidden.rows(rows.begin, rows.end),
                   .a_columns = vocabulary_},
                  count_);
    }
    if (bias_wgrad_) {
      ctx_.kernels.elementwise.column_sum(ctx_.stream, dlogits, bias_beta_, bias_sink_.view);
      bias_beta_ = 1;
    }
    if (!wgrad_) return;
    ctx_.kernels.gemm.gemm(ctx_.stream, {.a = dlogits,
                                         .b = pass_.hidden.rows(rows.begin, rows.end),
                                         .c = sink_.view,
                                         .transpose_a = true,
                                         .beta = beta_,
                                         .a_columns = vocabulary_});
    beta_ = 1;
  }

  Context& ctx_;
  const HeadSpec& spec_;
  const CrossEntropyPass& pass_;
  const Param& weight_;
  std::int64_t vocabulary_;  // on this rank
  std::int64_t count_ = 1;   // number of chunks
  WeightLease lease_;
  bool wgrad_, bias_wgrad_;
  GradSink sink_, bias_sink_;
  double beta_ = 0, bias_beta_ = 0;
};

}  // namespace

void cross_entropy(Context& ctx, const HeadSpec& spec, const CrossEntropyPass& pass) {
  HeadRun(ctx, spec, pass).run();
}

}  // namespace bev
