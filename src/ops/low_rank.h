// Ops of weight-decomposed low-rank adapters (DoRA).
#pragma once

#include <array>
#include <cstdint>

#include "autograd/tape.h"

namespace bev {

// Rows [first, first + O) of this rank's part of a weight [N, I], and the factors that are added to
// them: W + scale * B A, with B [O, r] and A [r, I].
struct AdaptedRows {
  const Param* weight = nullptr;
  std::int64_t first = 0;
  const Param *a = nullptr, *b = nullptr;
  double scale = 1;
};
// The squares of the norms of these rows [O] in the wide dtype, without a gradient. Collective over
// tp if the weight is row parallel.
Tensor row_squares(Context& ctx, const AdaptedRows& rows);

// Columns of an output to be multiplied by magnitude / sqrt(squares).
struct MagnitudeColumns {
  std::int64_t first = 0;
  const Param* magnitude = nullptr;  // [O]
  Tensor squares = {};               // [O] in the wide dtype; no gradient
};
inline constexpr std::size_t kMostMagnitudes = 3;
// y with some of its columns scaled; y must not be a partial sum.
Var scale_columns(Context& ctx, const Var& y,
                  const std::array<MagnitudeColumns, kMostMagnitudes>& parts);

}  // namespace bev
