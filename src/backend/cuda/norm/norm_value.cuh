// Normalised value, for the norm kernels and for fused quantisation. Multiplications and additions
// are never contracted to FMA, so that all of them are bit-equal.
#pragma once

namespace bev::cuda {

__device__ inline float normalised(float s, float mean, float rstd, float weight) {
  return __fmul_rn(__fmul_rn(__fsub_rn(s, mean), rstd), weight);
}
__device__ inline float normalised(float s, float mean, float rstd, float weight, float bias) {
  return __fadd_rn(normalised(s, mean, rstd, weight), bias);
}

}  // namespace bev::cuda
