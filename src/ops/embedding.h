// Vocabulary-parallel token embedding and learned position embedding.
#pragma once

#include "autograd/tape.h"
#include "ops/sequence_layout.h"

namespace bev {

struct EmbeddingSpec {
  double scale = 1;
  std::int64_t padding_row = -1;  // row that gets no gradient from lookups; -1: none
};

// tokens [T] i32, table [V, H] split over the vocabulary -> [T, H], a partial sum over tp: tokens
// of other ranks' vocabulary give zero rows. `placement` is that of the rows of the micro-batch.
Var embedding(Context& ctx, const Tensor& tokens, const Param& table, const EmbeddingSpec& spec,
              const Placement& placement);

// x += table[offset + position] on every row, in place.
Var add_positions(Context& ctx, const Var& x, const SequenceLayout& layout, const Param& table,
                  std::int64_t offset = 0);

// x += table[type] on every row, in place. types [T] i32; empty: 0 everywhere.
Var add_token_types(Context& ctx, const Var& x, const SequenceLayout& layout, const Tensor& types,
                    const Param& table);

}  // namespace bev
