// Gradients of the chunks of the SSD recurrence.
#pragma once

#include "kernels/ssd.h"

namespace bev::cpu::BEV_CPU_LEVEL {

void ssd_backward(const Stream& stream, const SsdBackwardArgs& args);

}  // namespace bev::cpu::BEV_CPU_LEVEL
