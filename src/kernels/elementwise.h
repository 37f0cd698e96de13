// Elementwise kernels, strided row copies and reductions; fill and cast are in kernels/kernels.h.
#pragma once

#include <cstdint>

#include "tensor/random_rows.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// y = x * keep / (1 - p), where an element is kept if its uniform number >= p. Applied to dy with
// the same random rows it is the backward. x, y [T, H] may alias.
struct DropoutArgs {
  View x, y;
  double p = 0;
  RandomRows random;
};

// Copies rows of `columns` elements from src (src_stride elements apart) to dst (dst_stride apart).
// With dst_rows (device) row r goes to row dst_rows[r] of dst; the entries must be distinct.
struct CopyRowsArgs {
  const void* src = nullptr;
  void* dst = nullptr;
  Dtype dtype = Dtype::kF32;
  std::int64_t rows = 0, columns = 0, src_stride = 0, dst_stride = 0;
  const std::int32_t* dst_rows = nullptr;
};

// sums[s] = sum of x[t] over all t with segment[t] == s, 0 for an empty segment. Sums in f64, in an
// order that depends only on the length of the segment.
struct SegmentSumArgs {
  View x;                                 // [T]
  const std::int32_t* segment = nullptr;  // [T], device; non-decreasing, in [0, S)
  View sums;                              // [S], dtype of x
};

struct ElementwiseKernels {
  // out = a + b, same floating dtype; out may alias either. b may be of 16 bits where a and out are
  // f32.
  void (*add)(const Stream&, const View& a, const View& b, const View& out);
  // y = beta * y + alpha * x; floating dtypes may differ, computed in y's accumulate type.
  void (*axpby)(const Stream&, double alpha, const View& x, double beta, const View& y);
  // y = factor[0] * x; x and y have one floating dtype and may alias. factor [1] is on the device
  // in their accumulate type.
  void (*scale)(const Stream&, const View& x, const View& factor, const View& y);
  // x [T, H] += row [H], same floating dtype.
  void (*add_rows)(const Stream&, const View& x, const View& row);
  void (*dropout)(const Stream&, const DropoutArgs&);
  void (*copy_rows)(const Stream&, const CopyRowsArgs&);
  // Sets *flag (i32, device) to 1 when x holds a NaN or an infinity; leaves it otherwise.
  void (*find_nonfinite)(const Stream&, const View& x, std::int32_t* flag);
  // Bias gradient: out[H] = beta * out + sum over the rows of x [T, H]. out may have any floating
  // dtype; sums are in the accumulate type.
  void (*column_sum)(const Stream&, const View& x, double beta, const View& out);
  void (*segment_sum)(const Stream&, const SegmentSumArgs&);
};

}  // namespace bev
