// bf16 instantiation of quantize_made.cuh.
#include "backend/cuda/quantize_made.cuh"
#include "backend/cuda/quantize_parts.h"

namespace bev::cuda {

void quantize_made_bf16(CudaQueue& queue, const QuantizeArgs& args) {
  quantize_made<Bfloat>(queue, args);
}

}  // namespace bev::cuda
