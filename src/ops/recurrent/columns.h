// Columns of rows [T, C]: parts as tensors of their own, factors of parts, and parts that all
// tensor-parallel ranks have.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tape.h"

namespace bev {

// Parts of x [T, C] with these numbers of columns, which add up to C.
std::vector<Var> split_columns(Context& ctx, const Var& x, std::span<const std::int64_t> columns);

// A copy of x with each part multiplied by its factor.
Var scale_column_parts(Context& ctx, const Var& x, std::span<const std::int64_t> columns,
                       std::span<const double> factors);

// x [T, own + this rank's parts of `shared`], each cut over tp as a Split segment is -> [T, own +
// all of `shared`]. Each rank has the gradient of its own use, so they are summed.
Var share_columns(Context& ctx, const Var& x, std::int64_t own,
                  std::span<const std::int64_t> shared);

}  // namespace bev
