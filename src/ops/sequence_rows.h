// One row for each sample of a micro-batch, from the rows of its tokens.
#pragma once

#include "autograd/tape.h"
#include "ops/sequence_layout.h"

namespace bev {

// x [T, H], replicated over tp -> the row of the first token of each sample, [samples, H]; zeros
// where another context-parallel rank holds it. The result is placed like x.
Var first_tokens(Context& ctx, const Var& x, const SequenceLayout& layout);

// x [T, H], replicated over tp -> the mean over the tokens of each sample, [samples, H]. Throws
// Error(kConfig) with context parallelism, where no rank has all tokens.
Var mean_tokens(Context& ctx, const Var& x, const SequenceLayout& layout);

// The inverse of first_tokens without a gradient: x [samples, W] -> [T, W] with the rows of samples
// at their first tokens, and zeros elsewhere.
Tensor at_first_tokens(Context& ctx, const Tensor& x, const SequenceLayout& layout);

}  // namespace bev
