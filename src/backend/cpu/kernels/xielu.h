// The kernels of xIELU, which belong to the table of activations.
#pragma once

namespace bev {
struct Stream;
struct XieluForwardArgs;
struct XieluBackwardArgs;
}  // namespace bev

namespace bev::cpu::BEV_CPU_LEVEL {

void xielu_forward(const Stream& stream, const XieluForwardArgs& args);
void xielu_backward(const Stream& stream, const XieluBackwardArgs& args);

}  // namespace bev::cpu::BEV_CPU_LEVEL
