// fp16 instantiation of grouped_wgmma.cuh.
#include "backend/cuda/grouped_wgmma.cuh"
#include "kernels/moe.h"

namespace bev::cuda {

void grouped_wgmma_f16(const Stream& stream, const GroupedArgs& args, GroupedProduct product) {
  wgmma::run<F16>(stream, args, product);
}

}  // namespace bev::cuda
