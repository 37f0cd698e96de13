// Rows of tokens in the order of the experts, or of the ranks, that they go to: a token has as many
// as it chooses.
#pragma once

#include "autograd/context.h"

namespace bev {

// See SortRowsArgs.
struct ExpertRows {
  Tensor order, place, offsets;
  std::int64_t topk = 1;

  std::int64_t count() const { return order.shape()[0]; }
  // Leaves the first ones. Those behind have no token.
  void keep(std::int64_t rows) { order = order.rows(0, rows); }
};
// Of the experts [first, first + count); choices [T, k] i32.
ExpertRows sort_rows(Context& ctx, const Tensor& choices, std::int64_t first, std::int64_t count);

// Gives them `count` places, of which the last may stay empty, or `block` places for each expert (0
// where there are no rows). Rows that do not fit are lost, and counted in ctx.lost_rows.
void fit_rows(Context& ctx, ExpertRows& rows, std::int64_t count);
void fit_blocks(Context& ctx, ExpertRows& rows, std::int64_t block);

// How many rows have a token: the host waits for the number. `expected` where the device does not
// tell (a plan of memory).
std::int64_t count_rows(Context& ctx, const ExpertRows& rows, std::int64_t expected);

// x [T, H] -> [R, H], and the sums of each token's rows back: each the gradient of the other.
Tensor gather_rows(Context& ctx, const Tensor& x, const ExpertRows& rows, const char* tag);
Tensor sum_rows(Context& ctx, const Tensor& x, const ExpertRows& rows, const char* tag);

}  // namespace bev
