#include "ops/recurrent/columns.h"

#include <numeric>
#include <utility>

#include "autograd/op_scope.h"
#include "base/error.h"
#include "ops/copy_columns.h"

namespace bev {

namespace {

void check_columns(const char* op, const Var& x, std::span<const std::int64_t> columns) {
  const std::int64_t sum = std::accumulate(columns.begin(), columns.end(), std::int64_t{0});
  BEV_CHECK(x.shape().ndim() == 2 && x.shape()[1] == sum, op, ": columns ", sum, " of ", x.shape());
}

Tensor column_part(Context& ctx, const Tensor& x, std::int64_t first, std::int64_t columns,
                   const char* tag) {
  Tensor part = ctx.allocate(x.dtype(), {x.shape()[0], columns}, tag);
  copy_columns(ctx, x, first, part, 0, columns);
  return part;
}

Tensor scaled_parts(Context& ctx, const Tensor& x, std::span<const std::int64_t> columns,
                    std::span<const double> factors, const char* tag) {
  Tensor y = ctx.allocate(x.dtype(), x.shape(), tag);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < columns.size(); first += columns[i], ++i) {
    if (factors[i] == 1) {
      copy_columns(ctx, x, first, y, first, columns[i]);
      continue;
    }
    Tensor part = column_part(ctx, x, first, columns[i], tag);
    Tensor product = ctx.allocate(x.dtype(), part.shape(), tag);
    ctx.kernels.elementwise.axpby(ctx.stream, factors[i], part, 0, product);
    copy_columns(ctx, product, 0, y, first, columns[i]);
  }
  return y;
}

// Moves between this rank's rows own | all shared, and the shared columns in parts by rank.
class SharedColumns {
 public:
  SharedColumns(const Context& ctx, std::int64_t own, std::vector<std::int64_t> shared)
      : ranks_(ctx.mesh.tp().size()), own_(own), shared_(std::move(shared)) {}

  // Columns of a rank: its part of each.
  std::int64_t part_columns(std::int64_t rank) const {
    std::int64_t columns = 0;
    for (std::int64_t all : shared_) columns += shard_range(all, ranks_, rank).size();
    return columns;
  }
  std::int64_t row_columns() const {
    return own_ + std::accumulate(shared_.begin(), shared_.end(), std::int64_t{0});
  }
  void copy(Context& ctx, const Tensor& rows, const Tensor& parts, bool into_rows) const {
    const std::int64_t tokens = rows.shape()[0];
    std::int64_t begin = 0;
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      const std::int64_t stride = part_columns(rank);
      std::int64_t place = 0, first = own_;
      for (std::int64_t all : shared_) {
        const Range range = shard_range(all, ranks_, rank);
        std::byte* whole = rows.view().address(first + range.begin);
        std::byte* cut = parts.view().address(begin + place);
        CopyRowsArgs args{cut, whole, rows.dtype(), tokens, range.size(), stride, row_columns()};
        if (!into_rows) {
          args = {whole, cut, rows.dtype(), tokens, range.size(), row_columns(), stride};
        }
        ctx.kernels.elementwise.copy_rows(ctx.stream, args);
        place += range.size();
        first += all;
      }
      begin += tokens * stride;
    }
  }
  std::int64_t own() const { return own_; }
  std::int64_t total() const { return row_columns() - own_; }

 private:
  std::int64_t ranks_, own_;
  std::vector<std::int64_t> shared_;
};

}  // namespace

std::vector<Var> split_columns(Context& ctx, const Var& x, std::span<const std::int64_t> columns) {
  OpScope scope(ctx, "split_columns");
  check_columns("split_columns", x, columns);
  std::vector<Var> parts;
  std::vector<GradSlot> slots;
  std::int64_t first = 0;
  for (std::int64_t count : columns) {
    parts.push_back(make_output(ctx, "split_columns",
                                column_part(ctx, x.tensor, first, count, "activations"),
                                x.placement, x.tracked()));
    slots.emplace_back(parts.back());
    first += count;
  }
  if (!x.tracked() || ctx.tape == nullptr) return parts;
  ctx.tape->record("split_columns", ctx.layer,
                   [slots, widths = std::vector<std::int64_t>(columns.begin(), columns.end()),
                    shape = x.shape(), in = GradSlot(x)](Backward& back) {
                     Context& bctx = back.ctx;
                     Tensor dx;
                     std::int64_t begin = 0;
                     for (std::size_t i = 0; i < slots.size(); begin += widths[i], ++i) {
                       Tensor part = back.take(slots[i]);
                       if (part.empty()) continue;
                       if (dx.empty()) {
                         dx = bctx.allocate(part.dtype(), shape, "gradients");
                         bctx.kernels.fill(bctx.stream, dx, 0);
                       }
                       copy_columns(bctx, part, 0, dx, begin, widths[i]);
                     }
                     if (!dx.empty()) back.add(in, std::move(dx));
                   });
  return parts;
}

Var scale_column_parts(Context& ctx, const Var& x, std::span<const std::int64_t> columns,
                       std::span<const double> factors) {
  OpScope scope(ctx, "scale_column_parts");
  check_columns("scale_column_parts", x, columns);
  Tensor y = scaled_parts(ctx, x.tensor, columns, factors, "activations");
  Var out = make_output(ctx, "scale_column_parts", std::move(y), x.placement, x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("scale_column_parts", ctx.layer,
                   [widths = std::vector<std::int64_t>(columns.begin(), columns.end()),
                    scales = std::vector<double>(factors.begin(), factors.end()), in = GradSlot(x),
                    result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     back.add(in, scaled_parts(back.ctx, dy, widths, scales, "gradients"));
                   });
  return out;
}

Var share_columns(Context& ctx, const Var& x, std::int64_t own,
                  std::span<const std::int64_t> shared) {
  OpScope scope(ctx, "share_columns");
  const SharedColumns columns(ctx, own, {shared.begin(), shared.end()});
  Group& tp = ctx.mesh.tp();
  const std::int64_t tokens = x.shape()[0], part = columns.part_columns(tp.rank());
  BEV_CHECK(x.shape()[1] == own + part, ErrorKind::kInternal, "share_columns: ", x.shape(), " for ",
            own, " own columns and ", part, " shared ones");
  Tensor mine = column_part(ctx, x.tensor, own, part, "activations");
  Tensor parts = ctx.allocate(x.dtype(), {tokens * columns.total()}, "activations");
  tp.all_gather(mine.view().flat(), parts, "shared columns").wait();
  Tensor rows = ctx.allocate(x.dtype(), {tokens, columns.row_columns()}, "activations");
  copy_columns(ctx, x.tensor, 0, rows, 0, own);
  columns.copy(ctx, rows, parts, true);
  Var out = make_output(ctx, "share_columns", std::move(rows), x.placement, x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record("share_columns", ctx.layer,
                   [columns, part, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
                     Tensor dy = back.take(result);
                     if (dy.empty()) return;
                     Context& bctx = back.ctx;
                     const std::int64_t count = dy.shape()[0], kept = columns.own();
                     Tensor partial =
                         bctx.allocate(dy.dtype(), {count * columns.total()}, "gradients");
                     columns.copy(bctx, dy, partial, false);
                     Tensor sum = bctx.allocate(dy.dtype(), {count, part}, "gradients");
                     bctx.mesh.tp()
                         .reduce_scatter(partial, sum.view().flat(), "gradient of shared columns")
                         .wait();
                     Tensor dx = bctx.allocate(dy.dtype(), {count, kept + part}, "gradients");
                     copy_columns(bctx, dy, 0, dx, 0, kept);
                     copy_columns(bctx, sum, 0, dx, kept, part);
                     back.add(in, std::move(dx));
                   });
  return out;
}

}  // namespace bev
