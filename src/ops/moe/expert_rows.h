// Permutation of tokens into rows grouped by destination expert or rank: one row per token and
// choice.
#pragma once

#include "autograd/context.h"

namespace bev {

// See SortRowsArgs in kernels/moe.h.
struct ExpertRows {
  Tensor order, place, offsets;
  std::int64_t topk = 1;

  std::int64_t count() const { return order.shape()[0]; }
  // Truncates to the first `rows` rows; the rest must have no token.
  void keep(std::int64_t rows) { order = order.rows(0, rows); }
};
// Sorts the rows of experts [first, first + count); choices is [T, k] i32.
ExpertRows sort_rows(Context& ctx, const Tensor& choices, std::int64_t first, std::int64_t count);

// Pads or truncates to `count` rows, or to `block` rows per expert; padding rows have no token.
// Rows that do not fit are lost and counted in ctx.lost_rows.
void fit_rows(Context& ctx, ExpertRows& rows, std::int64_t count);
void fit_blocks(Context& ctx, ExpertRows& rows, std::int64_t block);

// Number of rows that have a token; the host waits for it. Returns `expected` on a device that does
// not compute (memory planning).
std::int64_t count_rows(Context& ctx, const ExpertRows& rows, std::int64_t expected);

// Permute x [T, H] -> [R, H], and unpermute (sum of the rows of each token); each is the adjoint of
// the other.
Tensor permute_rows(Context& ctx, const Tensor& x, const ExpertRows& rows, const char* tag);
Tensor unpermute_rows(Context& ctx, const Tensor& x, const ExpertRows& rows, const char* tag);

}  // namespace bev
