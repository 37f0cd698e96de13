#include "backend/cpu/kernels/tables.h"

#include "backend/cpu/device.h"

namespace bev::cpu::BEV_CPU_LEVEL {

Kernels kernels() {
  return {.device = cpu_device_kernels(),
          .elementwise = elementwise_kernels(),
          .gemm = gemm_kernels(),
          .norm = norm_kernels(),
          .activation = activation_kernels(),
          .attention = attention_kernels(),
          .latent = latent_kernels(),
          .embedding = embedding_kernels(),
          .loss = loss_kernels(),
          .moe = moe_kernels(),
          .optim = optim_kernels(),
          .quantize = quantize_kernels()};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
