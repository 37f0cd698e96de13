// The kernels of gates, which belong to the table of activations.
#pragma once

namespace bev {
struct Stream;
struct SigmoidGateArgs;
struct SigmoidGateBackwardArgs;
}  // namespace bev

namespace bev::cpu::BEV_CPU_LEVEL {

void sigmoid_gate(const Stream& stream, const SigmoidGateArgs& args);
void sigmoid_gate_backward(const Stream& stream, const SigmoidGateBackwardArgs& args);

}  // namespace bev::cpu::BEV_CPU_LEVEL
