// The recurrence of Mamba-2 (state space duality): formulas in kernels/ssd.h. In training states
// go from chunk to chunk, and under context parallelism from rank to rank: each rank computes what
// its tokens add to the state and by how much they let it decay, and all combine these.
#pragma once

#include "autograd/tape.h"
#include "kernels/ssd.h"
#include "ops/recurrent/sequence_spans.h"

namespace bev {

struct SsdSpec {
  // [H of this rank], in the wide dtype.
  const Param *dt_bias = nullptr, *a_log = nullptr, *d = nullptr;
  SsdShape shape = {};  // without runs
};

// Rows x | B | C (xbc) and raw dt [T, H] -> y [T, H P]. Decoding: the state [H, N, P] is in columns
// from `first_state` of the rows' states.
Var ssd(Context& ctx, const Var& xbc, const Var& dt, const SsdSpec& spec, const RecurrentRows& rows,
        std::int64_t first_state);

}  // namespace bev
