// The parts of the table for mixtures of experts, by source.
#pragma once

#include "kernels/moe.h"

namespace bev::cpu::BEV_CPU_LEVEL {

void jitter(const Stream& stream, const JitterArgs& args);
void sinkhorn(const Stream& stream, const SinkhornArgs& args);
void route(const Stream& stream, const RouteArgs& args);
void route_backward(const Stream& stream, const RouteBackwardArgs& args);
void spread(const Stream& stream, const ChoiceArgs& args);
void pick(const Stream& stream, const ChoiceArgs& args);
void router_load(const Stream& stream, const RouterLoadArgs& args);
// moe_dispatch.cpp
void limit(const Stream& stream, const LimitArgs& args);
void dispatch(const Stream& stream, const DispatchArgs& args);
void fit_rows(const Stream& stream, const FitRowsArgs& args);

}  // namespace bev::cpu::BEV_CPU_LEVEL
