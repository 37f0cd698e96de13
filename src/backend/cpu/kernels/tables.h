// Kernel tables of one instruction level (v2, v3 or v4). Every source in this folder is compiled
// once per level, and its definitions are in the namespace of the level.
#pragma once

#include "kernels/kernels.h"

namespace bev::cpu::BEV_CPU_LEVEL {

void fill(const Stream&, const View& x, double value);
void cast(const Stream&, const View& from, const View& to);
ElementwiseKernels elementwise_kernels();
GemmKernels gemm_kernels();
NormKernels norm_kernels();
ActivationKernels activation_kernels();
RopeKernels rope_kernels();
AttentionKernels attention_kernels();
LatentKernels latent_kernels();
EmbeddingKernels embedding_kernels();
LossKernels loss_kernels();
RouterKernels router_kernels();
MoeKernels moe_kernels();
OptimKernels optim_kernels();
QuantizeKernels quantize_kernels();

const Kernels& kernels();

}  // namespace bev::cpu::BEV_CPU_LEVEL
