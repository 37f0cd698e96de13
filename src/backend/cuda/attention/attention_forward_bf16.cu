// bf16 instantiation of attention_forward.cuh.
#include "backend/cuda/attention/attention_forward.cuh"

namespace bev::cuda_attention {

void forward_bf16(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape,
                  KeepRun keep) {
  tensor_forward<Bf16>(queue, params, shape, keep);
}

}  // namespace bev::cuda_attention
