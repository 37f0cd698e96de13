// fp16 instantiation of attention_backward.cuh.
#include "backend/cuda/attention/attention_backward.cuh"

namespace bev::cuda_attention {

void backward_f16(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape) {
  tensor_backward<F16>(queue, params, shape);
}

}  // namespace bev::cuda_attention
