// Kernels behind the CPU tables for mixture of experts (MoE), by source file.
#pragma once

namespace bev {
struct Stream;
struct ChoiceArgs;
struct DispatchArgs;
struct FitRowsArgs;
struct GroupedGemmArgs;
struct JitterArgs;
struct LimitArgs;
struct RouteArgs;
struct RouteBackwardArgs;
struct RouterLoadArgs;
struct SinkhornArgs;
}  // namespace bev

namespace bev::cpu::BEV_CPU_LEVEL {

void jitter(const Stream& stream, const JitterArgs& args);
void sinkhorn(const Stream& stream, const SinkhornArgs& args);
void route(const Stream& stream, const RouteArgs& args);
void route_backward(const Stream& stream, const RouteBackwardArgs& args);
void spread(const Stream& stream, const ChoiceArgs& args);
void pick(const Stream& stream, const ChoiceArgs& args);
void router_load(const Stream& stream, const RouterLoadArgs& args);
// moe.cpp: a row does not depend on how many its expert has.
void grouped_gemm_exact(const Stream& stream, const GroupedGemmArgs& args);
// moe_dispatch.cpp
void limit(const Stream& stream, const LimitArgs& args);
void dispatch(const Stream& stream, const DispatchArgs& args);
void fit_rows(const Stream& stream, const FitRowsArgs& args);

}  // namespace bev::cpu::BEV_CPU_LEVEL
