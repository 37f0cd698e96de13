// Matrix products. Weights are [out, in] as in Hugging Face; activations [T, in].
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/packed_factor.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// c = alpha op(a) op(b) + beta c (+ bias on every row), row-major, op transposes the 2-D view.
// a and b have one floating dtype; c the same, or f32 under 16-bit a and b. Accumulates in f32
// (f64 for f64). bias [N], same dtype as a, or empty. beta 0 never reads c.
// linear forward:   y[T,O]  = x[T,I]  w[O,I]^T
// input gradient:   dx[T,I] = dy[T,O] w[O,I]
// weight gradient:  dw[O,I] = dy[T,O]^T x[T,I]   (beta 1 accumulates)
// Rows of a and of c may be longer than the matrix: the rest of them is neither read nor written.
struct GemmArgs {
  View a, b, c;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1, beta = 0;
  View bias;
  std::int64_t a_columns = 0, c_columns = 0;  // that belong to the matrix; 0: all
  PackedFactor* packed_b = nullptr;
};

struct GemmKernels {
  void (*gemm)(const Stream&, const GemmArgs&);
  // Of the form that packed_b would keep; 0 where such a product has none.
  std::size_t (*packed_bytes)(const GemmArgs&);
};

}  // namespace bev
