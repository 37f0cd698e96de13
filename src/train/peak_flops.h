// How fast this machine multiplies matrices.
#pragma once

#include "autograd/context.h"

namespace bev {

// Speed of this rank's matrix products in its dtype, in FLOP/s, measured: what "of peak" is
// relative to.
double measure_peak_flops(Context& ctx);

}  // namespace bev
