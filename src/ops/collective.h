// Tensor-parallel collectives as ops with their adjoints (Megatron's f and g). A tensor-parallel
// region is entered and left by one call each:
//
//                  without sequence parallel       with sequence parallel
//   enter  forward   none                          all-gather of tokens
//          backward  all-reduce                    reduce-scatter of tokens
//   leave  forward   all-reduce                    reduce-scatter of tokens
//          backward  none                          all-gather of tokens
#pragma once

#include "autograd/tape.h"

namespace bev {

// x is replicated over tp, or shard(0) with sequence parallel. The result has all tokens and is
// placed as copied: each rank computes a different part of the region from it.
Var enter_tensor_parallel(Context& ctx, const Var& x, std::int64_t tokens);

// x is shard(0) over tp (or whole, and returned as it is); the result has all tokens and is
// replicated: every rank computes the same from it, and keeps the gradient of its own tokens.
Var gather_tokens(Context& ctx, const Var& x, std::int64_t tokens);

// x is a partial sum over tp; the result is replicated, or shard(0) with sequence parallel.
Var leave_tensor_parallel(Context& ctx, const Var& x, bool sequence_parallel);

}  // namespace bev
