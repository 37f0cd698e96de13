// Launchers of gates, which belong to the table of activations.
#pragma once

#include "kernels/activation.h"

namespace bev::cuda {

void sigmoid_gate(const Stream& stream, const SigmoidGateArgs& args);
void sigmoid_gate_backward(const Stream& stream, const SigmoidGateBackwardArgs& args);

}  // namespace bev::cuda
