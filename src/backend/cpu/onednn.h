// Single-threaded f32 GEMM through oneDNN. Its own threading is off during a call, so results
// depend only on the shape.
#pragma once

#include "backend/cpu/gemm_dims.h"

namespace bev::cpu {

// c = alpha op(a) op(b) + beta c; beta 0 does not read c. Returns false if oneDNN fails.
bool onednn_gemm(const GemmDims& dims, float alpha, const float* a, const float* b, float beta,
                 float* c);

}  // namespace bev::cpu
