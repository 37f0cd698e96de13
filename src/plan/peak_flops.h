// GEMM throughput of this machine.
#pragma once

#include "autograd/context.h"

namespace bev {

// Measured speed of large GEMMs on this rank in its dtype, in FLOP/s: the reference of "of peak".
double measure_peak_flops(Context& ctx);

}  // namespace bev
