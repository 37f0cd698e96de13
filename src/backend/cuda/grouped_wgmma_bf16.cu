// bf16 instantiation of grouped_wgmma.cuh.
#include "backend/cuda/grouped_wgmma.cuh"
#include "kernels/moe.h"

namespace bev::cuda {

bool has_wgmma() {
  cudaFuncAttributes attributes;
  auto* kernel = &wgmma::grouped_kernel<Bf16, GroupedProduct::kOutput, Bf16>;
  check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
             "grouped product: attributes");
  return attributes.sharedSizeBytes > 0;
}

void grouped_wgmma_bf16(const Stream& stream, const GroupedArgs& args, GroupedProduct product) {
  wgmma::run<Bf16>(stream, args, product);
}

}  // namespace bev::cuda
