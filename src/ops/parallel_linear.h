// Linear layers cut over tp together with the exchange of tokens around them, so that the two
// overlap:
//
//                    with sequence parallel                     without
//   column  forward  all-gather x, product                      product
//           backward dx product under the all-gather of x,      dx product,
//                    weight product under the reduce-scatter    weight product under the
//                    of dx                                      all-reduce of dx
//   row     forward  product, reduce-scatter                    product, all-reduce
//           backward all-gather dy, products                    products
//
// `overlap` exchanges the blocks of the ranks one by one beside the products that need or make
// them.
#pragma once

#include "autograd/tape.h"

namespace bev {

// x [T, H] replicated over tp, or shard(0) of `tokens` rows -> [tokens, out] shard(1).
Var column_parallel(Context& ctx, const Var& x, std::int64_t tokens, const Param& weight,
                    const Param* bias, bool overlap);

// x [T, in] shard(1) -> [T, H] replicated, or shard(0) with sequence parallel. The bias is added
// afterwards, by add_bias.
Var row_parallel(Context& ctx, const Var& x, const Param& weight, bool sequence_parallel,
                 bool overlap);

// Columns q | k | v of [T, q + 2 k], where each rank of the kv group has a part of the rows' keys
// and values: afterwards it has all of them, q | whole k | whole v.
Var share_keys(Context& ctx, const Var& qkv, std::int64_t q_columns);

}  // namespace bev
