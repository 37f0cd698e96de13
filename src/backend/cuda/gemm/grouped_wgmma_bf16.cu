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

bool linear_wgmma_supports(const CudaQueue& queue, const LinearGemm& gemm) {
  const std::int64_t out_bytes = static_cast<std::int64_t>(size_of(gemm.out));
  // The epilogue reads the bias in pairs.
  return gemm.has_whole_words() && gemm.alpha == 1 && gemm.c_stride * out_bytes % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(gemm.c) % 16 == 0 &&
         (gemm.bias == nullptr || gemm.n % 8 == 0) && has_wgmma(queue) && has_tensor_maps();
}

void linear_wgmma_bf16(const Stream& stream, const LinearGemm& gemm) {
  wgmma::run_linear<Bf16>(stream, gemm);
}

void grouped_wgmma_bf16(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm) {
  wgmma::run<Bf16>(stream, args, gemm);
}

}  // namespace bev::cuda
