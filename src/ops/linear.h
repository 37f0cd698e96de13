// Linear layer y = x W^T (+ b). The split of the weight determines the placement of x and y:
//   over dim 0 (column parallel): x copied over tp    -> y shard(1)
//   over dim 1 (row parallel):    x shard(1)          -> y partial; its bias is added later
//   not split:                    x whole or shard(0) -> y the same
#pragma once

#include "autograd/tape.h"

namespace bev {

// x [T, I], weight [O, I], bias [O] or nullptr -> [T, O].
Var linear(Context& ctx, const Var& x, const Param& weight, const Param* bias);

// Columns [first, first + O) of y += scale * x W^T, in place: the producer of y [T, N] must not
// have saved it. The placement that linear() would give must be that of y.
struct AddLinear {
  double scale = 1;
  std::int64_t first = 0;
};
Var add_linear(Context& ctx, const Var& y, const Var& x, const Param& weight, const AddLinear& to);

// y = x + bias on every row, in place: the producer of x [T, H] must not have saved it.
Var add_bias(Context& ctx, const Var& x, const Param& bias);

// Accumulates the gradient of a bias, the column sums of dy [T, O], into its sink.
void add_bias_gradient(Context& ctx, const Param& bias, const Tensor& dy,
                       const Placement& placement);

}  // namespace bev
