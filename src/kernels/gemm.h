// GEMM: dense matrix multiplication. Weights are [out, in] as in Hugging Face; activations [T, in].
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/packed_operand.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// c = alpha op(a) op(b) + beta c (+ bias on every row), row-major; op transposes the 2-D view.
// a and b have one floating dtype; c has the same, or f32 for 16-bit a and b. Accumulates in f32
// (f64 for f64). bias [N] has the dtype of a, or is empty. With beta 0, c is never read.
// linear forward:            y[T,O]  = x[T,I]  w[O,I]^T
// dgrad (input gradient):    dx[T,I] = dy[T,O] w[O,I]
// wgrad (weight gradient):   dw[O,I] = dy[T,O]^T x[T,I]   (beta 1 accumulates)
// Rows of a and c may be padded: the padding is neither read nor written.
struct GemmArgs {
  View a, b, c;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1, beta = 0;
  View bias = {};
  std::int64_t a_columns = 0, c_columns = 0;  // width without padding; 0: no padding
  PackedOperand* packed_b = nullptr;
};

struct GemmKernels {
  void (*gemm)(const Stream&, const GemmArgs&);
  // Size of the buffer for packed_b; 0 if this GEMM does not use packed panels.
  std::size_t (*packed_bytes)(const GemmArgs&);
};

}  // namespace bev
