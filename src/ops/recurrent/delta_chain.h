// How the states of the gated delta rule pass between context-parallel ranks.
#pragma once

#include <span>
#include <vector>

#include "kernels/delta_rule.h"
#include "ops/sequence_layout.h"

namespace bev {

// The pieces of this rank as runs. Run states are rows of [items, ...] tensors; a rank sends all
// its rows, and the rows of rank r are number r * items and up among those of all ranks.
struct DeltaChain {
  std::vector<RecurrentRun> runs;
  std::int64_t items = 0;  // most pieces of documents that any rank shares with others
  std::vector<DeltaLink> entering, leaving;  // chains to this rank's entering states, and the
                                             // gradients of its leaving ones

  static DeltaChain make(std::span<const TokenSet> sets, std::size_t rank);
  // Whole documents of one rank.
  static DeltaChain make(const TokenSet& own);
};

}  // namespace bev
