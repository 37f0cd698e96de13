// All-to-all between neighbouring context-parallel ranks: each gives up some heads and gets the
// tokens of all for the heads it keeps (Ulysses), and back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "ops/sequence_layout.h"

namespace bev {

struct HeadExchange {
  Group* group = nullptr;
  std::span<const TokenSet> members;   // the tokens of each member
  const TokenSet* together = nullptr;  // all of them, in the order of sample and place
  // Columns of the rows with all heads: each part is cut over the group by itself (q | k | v).
  std::vector<std::int64_t> parts;

  std::int64_t columns() const;
};

// x [T, columns], shard(0) over cp -> [T of all members, columns / group], shard(1) over cp.
Var scatter_heads(Context& ctx, const Var& x, const HeadExchange& exchange);
// The inverse.
Var gather_heads(Context& ctx, const Var& x, const HeadExchange& exchange);

}  // namespace bev
