// How fast this machine multiplies matrices.
#pragma once

#include "parallel/engine.h"

namespace bev {

// Speed of this rank's matrix products in its dtype, in FLOP/s, measured: what "of peak" is
// relative to.
double measure_peak_flops(Engine& engine);

}  // namespace bev
