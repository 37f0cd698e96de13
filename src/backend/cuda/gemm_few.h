// Products of a few rows with a weight.
#pragma once

#include "kernels/gemm.h"

namespace bev::cuda {

// Up to 16 rows of 16-bit numbers times a b^T of moderate size, without anything to add but a bias.
bool gemm_few_serves(const GemmArgs& args);
void gemm_few(const Stream& stream, const GemmArgs& args);

}  // namespace bev::cuda
