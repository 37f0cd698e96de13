// The tables of CUDA kernels. The source of a family defines cuda_table(Family<Table>), which fills
// in its table.
#pragma once

#include "backend/cuda/device.h"
#include "kernels/kernels.h"

namespace bev {

struct AttentionSinkArgs;
struct GemmKernels;
struct GroupedScaledGemmArgs;
struct GroupedScaledWgradArgs;
struct MoeKernels;
struct QuantizeArgs;
struct ScaledGemmArgs;
struct SinkTermsArgs;

void cuda_fill(const Stream&, const View& x, double value);
void cuda_cast(const Stream&, const View& from, const View& to);

// Parts of the quantisation table (FP8, FP4).
void cuda_emulate_fp4(const Stream&, const QuantizeArgs&);
void cuda_scaled_gemm(const Stream&, const ScaledGemmArgs&);
void cuda_scaled_gemm_exact(const Stream&, const ScaledGemmArgs&);
void cuda_grouped_scaled(const Stream&, const GroupedScaledGemmArgs&);
void cuda_grouped_scaled_wgrad(const Stream&, const GroupedScaledWgradArgs&);

// Tables with exact forwards, for cuda_exact_kernels().
GemmKernels cuda_exact_gemm();
MoeKernels cuda_exact_moe();

// Parts of the attention table.
void cuda_add_sinks(const Stream&, const AttentionSinkArgs&);
void cuda_sink_terms(const Stream&, const SinkTermsArgs&);
void cuda_bound_logits(const Stream&, const View& lse, const View& max_logits);

}  // namespace bev
