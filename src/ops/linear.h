// Linear layers: y = x W^T (+ b). The weight's split decides what the op expects and gives:
//   over dim 0 (column parallel): x copied over tp    -> y shard(1)
//   over dim 1 (row parallel):    x shard(1)          -> y partial; its bias comes later
//   not split:                    x whole or shard(0) -> y the same
#pragma once

#include "autograd/tape.h"

namespace bev {

// x [T, I], weight [O, I], bias [O] or nullptr -> [T, O].
Var linear(Context& ctx, const Var& x, const Param& weight, const Param* bias);

// y = x + bias on every row. x [T, H], not kept by its producer: the addition is done in place.
Var add_bias(Context& ctx, const Var& x, const Param& bias);

// The gradient dy [T, O] of a bias's use goes to its sink.
void add_bias_gradient(Context& ctx, const Param& bias, const Tensor& dy,
                       const Placement& placement);

}  // namespace bev
