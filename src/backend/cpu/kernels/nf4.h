// Dequantisation of NF4 weights.
#pragma once

#include "tensor/nf4.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev::cpu::BEV_CPU_LEVEL {

void dequantize_nf4(const Stream& stream, const Nf4View& from, const View& to);

}  // namespace bev::cpu::BEV_CPU_LEVEL
