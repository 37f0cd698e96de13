// Traces of GPU streams through CUPTI, which is loaded when a trace is requested.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace bev {

std::unique_ptr<DeviceTrace> make_cuda_trace();

}  // namespace bev
