// Collectives as ops with their adjoints. A tensor-parallel region is entered and left by one call
// each:
//
//                  without sequence parallel       with it
//   enter  forward   nothing                       all-gather of tokens
//          backward  all-reduce                    reduce-scatter of tokens
//   leave  forward   all-reduce                    reduce-scatter of tokens
//          backward  nothing                       all-gather of tokens
#pragma once

#include "autograd/tape.h"

namespace bev {

// x is replicated over tp, or shard(0) with sequence parallel; the result is whole and copied: each
// rank computes its part of the region from it.
Var enter_tensor_parallel(Context& ctx, const Var& x, std::int64_t tokens);

// x is a partial sum over tp; the result is replicated, or shard(0) with sequence parallel.
Var leave_tensor_parallel(Context& ctx, const Var& x, bool sequence_parallel);

}  // namespace bev
