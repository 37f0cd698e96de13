// Instantiation of grouped_scaled.cuh for a left operand in E5M2.
#include "backend/cuda/grouped_scaled.cuh"

namespace bev::cuda {

void grouped_scaled_e5m2(const Stream& stream, const GroupedScaledArgs& args) {
  wgmma::grouped_scaled_of<Fp8Format::kE5m2>(stream, args);
}

void grouped_scaled_weight_e5m2(const Stream& stream, const GroupedScaledWeightArgs& args) {
  wgmma::grouped_scaled_weight_of<Fp8Format::kE5m2>(stream, args);
}

}  // namespace bev::cuda
