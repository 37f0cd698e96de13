// Instantiation of grouped_scaled.cuh for a left operand in E5M2.
#include "backend/cuda/gemm/grouped_scaled.cuh"

namespace bev::cuda {

void grouped_scaled_e5m2(const Stream& stream, const GroupedScaledGemmArgs& args) {
  wgmma::grouped_scaled_of<Fp8Format::kE5m2>(stream, args);
}

void grouped_scaled_wgrad_e5m2(const Stream& stream, const GroupedScaledWgradArgs& args) {
  wgmma::grouped_scaled_wgrad_of<Fp8Format::kE5m2>(stream, args);
}

}  // namespace bev::cuda
