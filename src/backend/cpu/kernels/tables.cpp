// The kernel tables of one instruction level.
#include "backend/cpu/kernels/tables.h"

#include "backend/cpu/device.h"
#include "kernels/tables.h"

namespace bev::cpu::BEV_CPU_LEVEL {

const Kernels& kernels() {
  static const KernelTables tables{.fill = fill,
                                   .cast = cast,
                                   .device = cpu_device_kernels(),
                                   .elementwise = elementwise_kernels(),
                                   .gemm = gemm_kernels(),
                                   .norm = norm_kernels(),
                                   .activation = activation_kernels(),
                                   .rope = rope_kernels(),
                                   .attention = attention_kernels(),
                                   .latent = latent_kernels(),
                                   .embedding = embedding_kernels(),
                                   .loss = loss_kernels(),
                                   .router = router_kernels(),
                                   .moe = moe_kernels(),
                                   .optim = optim_kernels(),
                                   .quantize = quantize_kernels()};
  static const Kernels kernels = tables.kernels();
  return kernels;
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
