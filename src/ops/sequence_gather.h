// Gathers whole sequences on every context-parallel rank, for ops that cannot be split over tokens:
//
//   gather_sequence   forward   all-gather over cp, in the order of the samples
//                     backward  each rank keeps the gradient of its own tokens
//   own_sequence      forward   each rank keeps its own tokens
//                     backward  all-gather over cp
//
// In between every rank computes the same, so no op there may have weights: their gradients would
// be counted once per rank, which the placements refuse.
#pragma once

#include "autograd/tape.h"
#include "ops/sequence_layout.h"

namespace bev {

// Tokens of all context-parallel ranks, in the order of gathered rows.
const TokenSet& whole_sequence(const SequenceLayout& layout);

// x [T, C] of this rank's tokens -> [T of all context-parallel ranks, C], replicated over cp.
Var gather_sequence(Context& ctx, const Var& x, const SequenceLayout& layout);
// The adjoint: x [T of all context-parallel ranks, C] -> this rank's rows [T, C].
Var own_sequence(Context& ctx, const Var& x, const SequenceLayout& layout);

}  // namespace bev
