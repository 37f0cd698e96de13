// bf16 instantiation of grouped_wgmma.cuh.
#include "backend/cuda/gemm/grouped_wgmma.cuh"
#include "kernels/moe.h"

namespace bev::cuda {

namespace {
bool is_compiled() {
  cudaFuncAttributes attributes;
  auto* kernel = &wgmma::grouped_kernel<Bf16, GroupedGemm::kForward, Bf16>;
  check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
             "grouped product: attributes");
  return attributes.sharedSizeBytes > 0;
}
}  // namespace

bool has_wgmma(const CudaQueue& queue) {
  constexpr int kHopper = 90;
  static const bool compiled = is_compiled();
  return queue.arch() == kHopper && compiled;
}

void grouped_wgmma_bf16(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm) {
  wgmma::run<Bf16>(stream, args, gemm);
}

}  // namespace bev::cuda
