// Kernels of weight-decomposed low-rank adapters (DoRA): norms of weight rows, and outputs that are
// multiplied by magnitude over norm.
#pragma once

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// Columns [first, first + N) of x and y [T, W] take part; factor j is magnitude[j] /
// sqrt(squares[j]). x and y have one floating dtype and may alias.
struct ScaleColumnsArgs {
  View x, y;
  std::int64_t first = 0;
  View magnitude;  // [N], dtype of x
  View squares;    // [N], accumulate type of x
};

// out[j] = beta * out[j] + (sum over rows of a[t, first + j] * b[t, first + j]) / sqrt(squares[j]).
// a and b [T, W] have one floating dtype; sums are in the accumulate type.
struct ColumnDotsArgs {
  View a, b;
  std::int64_t first = 0;
  View squares;  // [N], accumulate type of a
  double beta = 0;
  View out;  // [N], any floating dtype
};

struct LowRankKernels {
  // sums[r] = sum of squares of row r of x [R, C], both in the accumulate type.
  void (*row_squares)(const Stream&, const View& x, const View& sums);
  void (*scale_columns)(const Stream&, const ScaleColumnsArgs&);
  void (*column_dots)(const Stream&, const ColumnDotsArgs&);
};

}  // namespace bev
