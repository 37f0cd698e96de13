// Kernel tables of the CUDA backend by topic, each filled in by its own source.
#pragma once

#include "kernels/kernels.h"

namespace bev {

struct AttentionSinkArgs;
struct GroupedScaledArgs;
struct GroupedScaledWeightArgs;
struct QuantizeArgs;
struct SampleArgs;
struct ScaledProductArgs;
struct SinkTermsArgs;

void cuda_fill(const Stream&, const View& x, double value);
void cuda_cast(const Stream&, const View& from, const View& to);
ElementwiseKernels cuda_elementwise_kernels();
GemmKernels cuda_gemm_kernels();
NormKernels cuda_norm_kernels();
ActivationKernels cuda_activation_kernels();
RopeKernels cuda_rope_kernels();
AttentionKernels cuda_attention_kernels();
LatentKernels cuda_latent_kernels();
EmbeddingKernels cuda_embedding_kernels();
LossKernels cuda_loss_kernels();
RouterKernels cuda_router_kernels();
MoeKernels cuda_moe_kernels();
OptimKernels cuda_optim_kernels();
QuantizeKernels cuda_quantize_kernels();
DeviceKernels cuda_device_kernels();

// Parts of the quantisation table (FP8, FP4).
void cuda_emulate_fp4(const Stream&, const QuantizeArgs&);
void cuda_scaled_product(const Stream&, const ScaledProductArgs&);
void cuda_grouped_scaled(const Stream&, const GroupedScaledArgs&);
void cuda_grouped_scaled_weight(const Stream&, const GroupedScaledWeightArgs&);

// Part of the loss table.
bool cuda_sample(const Stream&, const SampleArgs&);

// Parts of the attention table.
void cuda_add_sinks(const Stream&, const AttentionSinkArgs&);
void cuda_sink_terms(const Stream&, const SinkTermsArgs&);

}  // namespace bev
