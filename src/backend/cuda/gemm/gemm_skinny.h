// Skinny GEMM for decoding (M <= 16, bf16/fp16, B transposed): beta = 0, optional bias. Memory
// bound: reads B once.
#pragma once

#include "kernels/gemm.h"

namespace bev::cuda {

// True for M <= 16, 16-bit operands with 16-byte aligned rows, B transposed and at most 2^24
// elements.
bool gemm_skinny_supports(const GemmArgs& args);
void gemm_skinny(const Stream& stream, const GemmArgs& args);

}  // namespace bev::cuda
