// FP8 GEMM and grouped FP8 GEMM, emulated.
#pragma once

#include "kernels/quantize.h"

namespace bev::cpu::BEV_CPU_LEVEL {

void scaled_gemm(const Stream& stream, const ScaledGemmArgs& args);
void grouped_scaled(const Stream& stream, const GroupedScaledGemmArgs& args);
// A row does not depend on how many there are.
void scaled_gemm_exact(const Stream& stream, const ScaledGemmArgs& args);
void grouped_scaled_exact(const Stream& stream, const GroupedScaledGemmArgs& args);
void grouped_scaled_wgrad(const Stream& stream, const GroupedScaledWgradArgs& args);

}  // namespace bev::cpu::BEV_CPU_LEVEL
