// fp16 instantiation of quantize_made.cuh.
#include "backend/cuda/quantize_made.cuh"
#include "backend/cuda/quantize_parts.h"

namespace bev::cuda {

void quantize_made_f16(CudaQueue& queue, const QuantizeArgs& args) {
  quantize_made<Half>(queue, args);
}

}  // namespace bev::cuda
