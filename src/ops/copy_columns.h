// Copies of column ranges between row-major tensors.
#pragma once

#include "autograd/context.h"
#include "kernels/elementwise.h"

namespace bev {

// Copies `count` columns of every row, from column from_begin of `from` to column to_begin of `to`.
inline void copy_columns(Context& ctx, const Tensor& from, std::int64_t from_begin,
                         const Tensor& to, std::int64_t to_begin, std::int64_t count) {
  ctx.kernels.elementwise.copy_rows(ctx.stream, {.src = from.view().address(from_begin),
                                                 .dst = to.view().address(to_begin),
                                                 .dtype = from.dtype(),
                                                 .rows = from.shape()[0],
                                                 .columns = count,
                                                 .src_stride = from.shape()[1],
                                                 .dst_stride = to.shape()[1]});
}

}  // namespace bev
