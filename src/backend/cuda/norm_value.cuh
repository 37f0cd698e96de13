// A normalised number, for the kernels that write it and for those that round it on the way. No
// product is fused with a sum, so that all give the same bits.
#pragma once

namespace bev::cuda {

__device__ inline float normalised(float s, float mean, float rstd, float weight) {
  return __fmul_rn(__fmul_rn(__fsub_rn(s, mean), rstd), weight);
}
__device__ inline float normalised(float s, float mean, float rstd, float weight, float bias) {
  return __fadd_rn(normalised(s, mean, rstd, weight), bias);
}

}  // namespace bev::cuda
