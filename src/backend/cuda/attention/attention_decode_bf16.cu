// bf16 instantiation of attention_decode.cuh.
#include "backend/cuda/attention/attention_decode.cuh"

namespace bev::cuda_attention {

bool decode_bf16(CudaQueue& queue, DecodeParams& params, const AttentionShape& shape,
                 bool may_split) {
  return decode_of<Bf16>(queue, params, shape, may_split);
}

}  // namespace bev::cuda_attention
