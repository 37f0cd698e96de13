// Tensor-parallel linear layers fused with the collectives around them, so that the two overlap:
//
//                    with sequence parallel                     without
//   column  forward  all-gather x, GEMM                         GEMM
//           backward dgrad overlaps the all-gather of x,        dgrad,
//                    wgrad overlaps the reduce-scatter          wgrad overlaps the
//                    of dx                                      all-reduce of dx
//   row     forward  GEMM, reduce-scatter                       GEMM, all-reduce
//           backward all-gather dy, dgrad and wgrad             dgrad and wgrad
//
// `overlap` sends the blocks of the ranks one by one, concurrently with the GEMMs that consume or
// produce them.
#pragma once

#include "autograd/tape.h"

namespace bev {

// x [T, H] replicated over tp, or shard(0) of `tokens` rows -> [tokens, out] shard(1).
Var column_parallel(Context& ctx, const Var& x, std::int64_t tokens, const Param& weight,
                    const Param* bias, bool overlap);

// x [T, in] shard(1) -> [T, H] replicated, or shard(0) with sequence parallel. The bias is added
// later by add_bias.
Var row_parallel(Context& ctx, const Var& x, const Param& weight, bool sequence_parallel,
                 bool overlap);

// GQA with fewer kv heads than tp ranks: each rank of the kv group has a part of the columns k | v
// of rows q | k | v [T, q + 2 k]; all-gathers them, so that afterwards it has q | whole k | whole
// v.
Var share_keys(Context& ctx, const Var& qkv, std::int64_t q_columns);

}  // namespace bev
