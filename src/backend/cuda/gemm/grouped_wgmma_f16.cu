// fp16 instantiation of grouped_wgmma.cuh.
#include "backend/cuda/gemm/grouped_wgmma.cuh"
#include "kernels/moe.h"

namespace bev::cuda {

void linear_wgmma_f16(const Stream& stream, const LinearGemm& gemm) {
  wgmma::run_linear<F16>(stream, gemm);
}

void grouped_wgmma_f16(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm) {
  wgmma::run<F16>(stream, args, gemm);
}

}  // namespace bev::cuda
