// What the GPU's streams do, for traces: through CUPTI, loaded when a trace is asked for.
#pragma once

#include <memory>

#include "kernels/device.h"

namespace bev {

std::unique_ptr<DeviceTrace> make_cuda_trace();

}  // namespace bev
