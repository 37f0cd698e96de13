// Largest numbers that kernels find on their way, for the scales of 8-bit floats.
#pragma once

#include "autograd/context.h"

namespace bev {

// f32 [1], to be raised.
inline Tensor zero_amax(const Context& ctx) {
  Tensor amax = ctx.allocate(Dtype::kF32, {1}, "scales");
  ctx.kernels.fill(ctx.stream, amax, 0);
  return amax;
}
// Null for none.
inline float* address_of(const Tensor& amax) { return amax.empty() ? nullptr : amax.as<float>(); }

}  // namespace bev
