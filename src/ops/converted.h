// Tensors in another dtype.
#pragma once

#include "autograd/context.h"

namespace bev {

// The values in `dtype`: x itself where it is in that, or empty; else a copy.
inline Tensor converted(const Context& ctx, const Tensor& x, Dtype dtype, const char* tag) {
  if (x.empty() || x.dtype() == dtype) return x;
  Tensor out = ctx.allocate(dtype, x.shape(), tag);
  ctx.kernels.cast(ctx.stream, x, out);
  return out;
}

}  // namespace bev
