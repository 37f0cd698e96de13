// amax of tensors.
#pragma once

#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev::cpu::BEV_CPU_LEVEL {

// *amax = max(*amax, max |x|); NaN is ignored. x: f32, bf16 or f16.
void raise_amax(const Stream& stream, const View& x, float* amax);

}  // namespace bev::cpu::BEV_CPU_LEVEL
