// fp16 instantiation of quantize_fused.cuh.
#include "backend/cuda/quantize/quantize_fused.cuh"
#include "backend/cuda/quantize/quantize_launchers.h"

namespace bev::cuda {

void quantize_fused_f16(CudaQueue& queue, const QuantizeArgs& args) {
  quantize_fused<Half>(queue, args);
}

}  // namespace bev::cuda
