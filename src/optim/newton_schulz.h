// The Newton-Schulz iteration, which makes the singular values of a matrix nearly 1: X' = a X + (b
// A
// + c A A) X with A = X X^T, or with the products on the other side where that is smaller.
#pragma once

#include <cstdint>

#include "autograd/context.h"
#include "optim/newton_schulz_kind.h"

namespace bev {

struct NewtonSchulz {
  NewtonSchulzKind kind = NewtonSchulzKind::kQuintic;
  std::int64_t steps = 5;
};

// Orthogonalises x [R, C] in place, with products in its dtype. `split` is the dim of x that the
// ranks of `parts` hold parts of, whose Gram matrices are summed; -1: x is whole.
void orthogonalise(Context& ctx, const NewtonSchulz& rule, const View& x, Group& parts, int split);

}  // namespace bev
