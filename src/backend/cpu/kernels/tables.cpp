#include "backend/cpu/kernels/tables.h"

namespace bev::cpu::BEV_CPU_LEVEL {

Kernels kernels() {
  return {.elementwise = elementwise_kernels(),
          .gemm = gemm_kernels(),
          .norm = norm_kernels(),
          .activation = activation_kernels(),
          .attention = attention_kernels(),
          .embedding = embedding_kernels(),
          .loss = loss_kernels(),
          .optim = optim_kernels()};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
