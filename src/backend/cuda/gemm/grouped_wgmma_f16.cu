// fp16 instantiation of grouped_wgmma.cuh.
#include "backend/cuda/gemm/grouped_wgmma.cuh"
#include "kernels/moe.h"

namespace bev::cuda {

void grouped_wgmma_f16(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm) {
  wgmma::run<F16>(stream, args, gemm);
}

}  // namespace bev::cuda
