// bf16 instantiation of quantize_fused.cuh.
#include "backend/cuda/quantize/quantize_fused.cuh"
#include "backend/cuda/quantize/quantize_launchers.h"

namespace bev::cuda {

void quantize_fused_bf16(CudaQueue& queue, const QuantizeArgs& args) {
  quantize_fused<Bfloat>(queue, args);
}

}  // namespace bev::cuda
