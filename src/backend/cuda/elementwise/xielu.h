// Launchers of xIELU, which belong to the table of activations.
#pragma once

#include "kernels/activation.h"

namespace bev::cuda {

void xielu_forward(const Stream& stream, const XieluForwardArgs& args);
void xielu_backward(const Stream& stream, const XieluBackwardArgs& args);

}  // namespace bev::cuda
