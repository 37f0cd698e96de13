// FP8 GEMM and grouped FP8 GEMM, emulated.
#pragma once

#include "kernels/quantize.h"

namespace bev::cpu::BEV_CPU_LEVEL {

void scaled_product(const Stream& stream, const ScaledProductArgs& args);
void grouped_scaled(const Stream& stream, const GroupedScaledArgs& args);
void grouped_scaled_weight(const Stream& stream, const GroupedScaledWeightArgs& args);

}  // namespace bev::cpu::BEV_CPU_LEVEL
