// Kernels for weights in NF4, by source file.
#pragma once

#include "kernels/quantize.h"

namespace bev::cuda {

// quantize/nf4.cu: any layout.
void dequantize_nf4(const Stream& stream, const Nf4View& from, const View& to);
// gemm/nf4_mma.cu: mma.sync on 16-bit operands.
bool takes_nf4(const Nf4GemmArgs& args);
void nf4_gemm(const Stream& stream, const Nf4GemmArgs& args);

}  // namespace bev::cuda
