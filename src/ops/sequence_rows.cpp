#include "ops/sequence_rows.h"

#include <utility>

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "ops/converted.h"

namespace bev {

namespace {

void check_rows(const char* op, const Var& x, const SequenceLayout& layout) {
  BEV_CHECK(x.shape().ndim() == 2 && x.shape()[0] == layout.tokens, op, ": input ", x.shape(),
            " for ", layout.tokens, " tokens");
  BEV_CHECK(x.placement[Axis::kTp] == PlaceState::kReplicated, ErrorKind::kInternal, op,
            ": the input {", x.placement, "} must be whole over tp");
}

// The rows of `table` at `index`, zeros where that is negative.
Tensor rows_at(Context& ctx, const Tensor& table, const Tensor& index, const char* tag) {
  Tensor out = ctx.allocate(table.dtype(), {index.numel(), table.shape()[1]}, tag);
  ctx.kernels.embedding.forward(ctx.stream,
                                {.index = index.as<std::int32_t>(), .weight = table, .out = out});
  return out;
}

// The inverse for distinct rows: [rows, H] with dy at `index`, zeros elsewhere.
Tensor placed_at(Context& ctx, const Tensor& dy, const Tensor& index, std::int64_t rows) {
  const Dtype sums = dy.dtype() == Dtype::kF16 ? Dtype::kF32 : dy.dtype();
  Tensor out = ctx.allocate(sums, {rows, dy.shape()[1]}, "gradients");
  ctx.kernels.embedding.backward(ctx.stream,
                                 {.index = index.as<std::int32_t>(), .dy = dy, .dweight = out});
  return converted(ctx, out, dy.dtype(), "gradients");
}

// Rows of each sample and their number.
struct SampleRows {
  std::int64_t sample = 0, begin = 0, end = 0;
  double share() const { return 1.0 / static_cast<double>(end - begin); }
};
std::vector<SampleRows> sample_rows(const SequenceLayout& layout) {
  std::vector<SampleRows> all;
  for (const DocumentPiece& piece : layout.own.pieces()) {
    if (all.empty() || all.back().sample != piece.sample) {
      all.push_back({piece.sample, piece.row, piece.row});
    }
    all.back().end = piece.row + piece.count;
  }
  return all;
}

// Each row [1, H] of x times the share of its sample.
Tensor shared_out(Context& ctx, std::span<const SampleRows> samples, const Tensor& x) {
  Tensor out = ctx.allocate(x.dtype(), x.shape(), "gradients");
  for (const SampleRows& at : samples) {
    ctx.kernels.elementwise.axpby(ctx.stream, at.share(), x.view().rows(at.sample, at.sample + 1),
                                  0, out.view().rows(at.sample, at.sample + 1));
  }
  return out;
}

}  // namespace

Var first_tokens(Context& ctx, const Var& x, const SequenceLayout& layout) {
  OpScope scope(ctx, "first_tokens");
  check_rows("first_tokens", x, layout);
  Tensor index = layout.first_rows;
  Var out = make_output(ctx, "first_tokens", rows_at(ctx, x.tensor, index, "activations"),
                        x.placement, x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record(
      "first_tokens", ctx.layer,
      [index, tokens = layout.tokens, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (!dy.empty()) back.add(in, placed_at(back.ctx, dy, index, tokens));
      });
  return out;
}

Tensor at_first_tokens(Context& ctx, const Tensor& x, const SequenceLayout& layout) {
  return placed_at(ctx, x, layout.first_rows, layout.tokens);
}

Var mean_tokens(Context& ctx, const Var& x, const SequenceLayout& layout) {
  OpScope scope(ctx, "mean_tokens");
  check_rows("mean_tokens", x, layout);
  BEV_CHECK(ctx.mesh.cp().size() == 1, ErrorKind::kConfig,
            "--context-parallel-size: ", ctx.mesh.cp().size(),
            "; the head for labels reads the mean over a sequence, which no rank holds whole; give "
            "1, or use other kinds of parallelism");
  std::vector<SampleRows> samples = sample_rows(layout);
  Tensor means = ctx.allocate(x.dtype(), {layout.sample_count, x.shape()[1]}, "activations");
  for (const SampleRows& at : samples) {
    Tensor sum = ctx.allocate(ctx.wide(), {x.shape()[1]}, "activations");
    ctx.kernels.elementwise.column_sum(ctx.stream, x.tensor.view().rows(at.begin, at.end), 0, sum);
    ctx.kernels.elementwise.axpby(ctx.stream, at.share(), sum, 0,
                                  means.view().rows(at.sample, at.sample + 1).flat());
  }
  Var out = make_output(ctx, "mean_tokens", std::move(means), x.placement, x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("mean_tokens", ctx.layer,
                   [samples = std::move(samples), index = layout.batch_samples, in = GradSlot(x),
                    result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Tensor shares = shared_out(back.ctx, samples, dy);
                     back.add(in, rows_at(back.ctx, shares, index, "gradients"));
                   });
  return out;
}

}  // namespace bev
