// Tokens between the ranks that have them and the ranks of etp x ep, which have all experts
// together. A region of experts is entered and left by one call each, as a tensor-parallel one is:
//
//                  every rank has its own tokens    those of etp have the same (ep is 1)
//   enter  forward   all-gather of tokens             nothing
//          backward  reduce-scatter                   all-reduce
//   leave  forward   reduce-scatter                   all-reduce
//          backward  all-gather                       nothing
#pragma once

#include "autograd/tape.h"
#include "ops/sequence_layout.h"

namespace bev {

// x [T, ...] of the micro-batch, whole or shard(0) over tp -> the tokens of all ranks of etp x ep,
// one rank after the other, copied.
Var enter_experts(Context& ctx, const Var& x, const SequenceLayout& layout);
// The same of a tensor placed as `placement`, without a gradient.
Tensor gather_for_experts(Context& ctx, const Tensor& x, const Placement& placement,
                          const SequenceLayout& layout);
// Partial sums for those tokens -> this rank's, placed as `placement`.
Var leave_experts(Context& ctx, const Var& x, const Placement& placement,
                  const SequenceLayout& layout);

// Of what is inside: tokens of edp ranks are their own.
Placement expert_placement(PlaceState etp, PlaceState ep);

}  // namespace bev
