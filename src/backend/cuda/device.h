// CUDA devices and their kernels. No CUDA header is needed to use it.
#pragma once

#include "kernels/kernels.h"

namespace bev {

// Devices that can be used; 0 also without a driver.
int cuda_device_count();

const Kernels& cuda_kernels();

}  // namespace bev
