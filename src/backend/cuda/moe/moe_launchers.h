// Launchers behind the CUDA tables for mixture of experts (MoE), by source file.
#pragma once

#include <cstdint>

namespace bev {
class CudaQueue;
struct Stream;
struct ChoiceArgs;
struct DispatchArgs;
struct FitRowsArgs;
struct GroupedGemmArgs;
struct GroupedScaledGemmArgs;
struct GroupedScaledWgradArgs;
struct JitterArgs;
struct LimitArgs;
struct RouteArgs;
struct RouteBackwardArgs;
struct RouterLoadArgs;
struct SinkhornArgs;
struct SortRowsArgs;
}  // namespace bev

namespace bev::cuda {

// moe_router_noise.cu
void jitter(const Stream& stream, const JitterArgs& args);
void sinkhorn(const Stream& stream, const SinkhornArgs& args);
// moe_router.cu
void route(const Stream& stream, const RouteArgs& args);
void route_backward(const Stream& stream, const RouteBackwardArgs& args);
// moe_router_load.cu
void router_load(const Stream& stream, const RouterLoadArgs& args);
void spread(const Stream& stream, const ChoiceArgs& args);
void pick(const Stream& stream, const ChoiceArgs& args);
// moe_dispatch.cu
void limit(const Stream& stream, const LimitArgs& args);
void dispatch(const Stream& stream, const DispatchArgs& args);
// sort_few.cu: sort_rows for few tokens.
bool sort_few_supports(const SortRowsArgs& args);
void sort_few(const Stream& stream, const SortRowsArgs& args);
// moe_fit.cu
void fit_rows(const Stream& stream, const FitRowsArgs& args);

// Forward y = x w^T, dgrad x = y w, wgrad w = y^T x.
enum class GroupedGemm : std::uint8_t { kForward, kDgrad, kWgrad };
// grouped_gemm.cpp: selects the fastest kernel that supports the arguments.
void run_grouped_gemm(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm);
// The forward by a kernel that does not depend on the number of rows.
void run_grouped_exact(const Stream& stream, const GroupedGemmArgs& args);
// grouped_plain.cu: CUDA cores, any dtype and size.
void grouped_plain(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm);
// Bias gradient: column sums of y over the rows of each expert.
void grouped_bias(const Stream& stream, const GroupedGemmArgs& args);
// grouped_mma.cu: tensor cores, 16-bit operands with 16-byte aligned rows.
bool grouped_mma_supports(const GroupedGemmArgs& args);
void grouped_mma(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm);
// grouped_skinny.cu: forward only, few rows per expert (decoding).
bool grouped_skinny_supports(const GroupedGemmArgs& args);
void grouped_skinny(const Stream& stream, const GroupedGemmArgs& args);
// grouped_wgmma.cuh: like grouped_mma.cu, on Hopper, if the program contains code for sm_90a.
bool has_wgmma(const CudaQueue& queue);
void grouped_wgmma_bf16(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm);
void grouped_wgmma_f16(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm);
// grouped_scaled.cuh: FP8, by the format of the left operand; requires has_wgmma().
void grouped_scaled_e4m3(const Stream& stream, const GroupedScaledGemmArgs& args);
void grouped_scaled_e5m2(const Stream& stream, const GroupedScaledGemmArgs& args);
void grouped_scaled_wgrad_e4m3(const Stream& stream, const GroupedScaledWgradArgs& args);
void grouped_scaled_wgrad_e5m2(const Stream& stream, const GroupedScaledWgradArgs& args);

}  // namespace bev::cuda
