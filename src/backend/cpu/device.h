// The CPU as a device: a thread pool and host memory.
#pragma once

#include "kernels/device.h"

namespace bev {

DeviceKernels cpu_device_kernels();

}  // namespace bev
