// Ulysses: all-to-all between neighbouring context-parallel ranks that trades tokens for heads, so
// that each rank has all tokens of its heads inside attention, and back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tape.h"
#include "ops/sequence_layout.h"

namespace bev {

struct UlyssesExchange {
  Group* group = nullptr;
  std::span<const TokenSet> members;   // tokens of each member
  const TokenSet* together = nullptr;  // tokens of all members, ordered by sample and position
  // Columns of rows with all heads; each part (q | k | v) is split over the group on its own.
  std::vector<std::int64_t> parts;

  std::int64_t columns() const;
};

// x [T, columns], shard(0) over cp -> [T of all members, columns / group], shard(1) over cp.
Var scatter_heads(Context& ctx, const Var& x, const UlyssesExchange& exchange);
// The inverse of scatter_heads.
Var gather_heads(Context& ctx, const Var& x, const UlyssesExchange& exchange);

}  // namespace bev
