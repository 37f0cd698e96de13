// The kernel tables of one instruction level (v2, v3 or v4). Every source in this folder is
// compiled once per level; what it defines lies in the level's namespace.
#pragma once

#include "kernels/kernels.h"

namespace bev::cpu::BEV_CPU_LEVEL {

ElementwiseKernels elementwise_kernels();
GemmKernels gemm_kernels();
NormKernels norm_kernels();
ActivationKernels activation_kernels();
AttentionKernels attention_kernels();
LatentKernels latent_kernels();
EmbeddingKernels embedding_kernels();
LossKernels loss_kernels();
MoeKernels moe_kernels();
OptimKernels optim_kernels();
QuantizeKernels quantize_kernels();

Kernels kernels();

}  // namespace bev::cpu::BEV_CPU_LEVEL
