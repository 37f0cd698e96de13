// amax buffers for FP8 scaling, filled by the kernels that produce a tensor.
#pragma once

#include "autograd/context.h"

namespace bev {

// f32 [1], initialised to 0; kernels raise it by max.
inline Tensor zero_amax(const Context& ctx) {
  Tensor amax = ctx.allocate(Dtype::kF32, {1}, "scales");
  ctx.kernels.fill(ctx.stream, amax, 0);
  return amax;
}
// Returns null for an empty tensor: amax is not wanted.
inline float* address_of(const Tensor& amax) { return amax.empty() ? nullptr : amax.as<float>(); }

}  // namespace bev
