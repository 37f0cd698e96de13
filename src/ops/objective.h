// What objectives over log-probabilities are made of: sums over the tokens of a sample, and a loss
// whose gradient the caller has computed.
#pragma once

#include "autograd/tape.h"
#include "ops/sequence_layout.h"

namespace bev {

// Sums of x [T] over the tokens of each sample of the micro-batch, on all context-parallel ranks:
// [samples] in x's dtype, 0 for a sample without tokens, the same on all cp and tp ranks. x has the
// batch's placement and is whole over tp. Collective over cp.
Var sum_by_sample(Context& ctx, const Var& x, const SequenceLayout& layout);

// A scalar loss whose value and gradient the caller has computed: loss [1] in the wide dtype, dx
// the gradient of the loss with respect to x, with x's shape and dtype. The tape adds dx times the
// gradient of the loss. x must be whole or cut over every axis; the loss is placed as x is, so that
// where x is cut it is the sum over this rank's part. `name` must be a literal.
Var given_gradient(Context& ctx, const char* name, const Var& x, Tensor loss, Tensor dx);

}  // namespace bev
