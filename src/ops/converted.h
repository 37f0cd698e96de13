// Dtype conversion of tensors.
#pragma once

#include "autograd/context.h"

namespace bev {

// Returns x itself if it is empty or already in `dtype`, else a converted copy.
inline Tensor converted(const Context& ctx, const Tensor& x, Dtype dtype, const char* tag) {
  if (x.empty() || x.dtype() == dtype) return x;
  Tensor out = ctx.allocate(dtype, x.shape(), tag);
  ctx.kernels.cast(ctx.stream, x, out);
  return out;
}

}  // namespace bev
