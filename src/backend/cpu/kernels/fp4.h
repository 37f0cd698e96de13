// Emulated FP4 quantisation: rounds to 4-bit floats and back.
#pragma once

#include "kernels/quantize.h"

namespace bev::cpu::BEV_CPU_LEVEL {

void emulate_fp4(const Stream& stream, const QuantizeArgs& args);

}  // namespace bev::cpu::BEV_CPU_LEVEL
