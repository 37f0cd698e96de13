// Building blocks of objectives over log-probabilities: sums over the tokens of a sample, and a
// loss whose gradient the caller has computed.
#pragma once

#include "autograd/tape.h"
#include "ops/sequence_layout.h"

namespace bev {

// Sums x [T] over the tokens of each sample of the micro-batch, on all context-parallel ranks:
// [samples] in the dtype of x, 0 for a sample without tokens, the same on all cp and tp ranks. x
// has the placement of the batch and is replicated over tp. Collective over cp.
Var sum_by_sample(Context& ctx, const Var& x, const SequenceLayout& layout);

// Scalar loss with a given gradient: loss [1] in the wide dtype; dx is its gradient with respect to
// x, in the shape and dtype of x. The backward adds dx times the gradient of the loss. x must be
// replicated or sharded over every axis; the loss is placed like x, so where x is sharded it is the
// sum over this rank's part. `name` must be a literal.
Var given_gradient(Context& ctx, const char* name, const Var& x, Tensor loss, Tensor dx);

}  // namespace bev
