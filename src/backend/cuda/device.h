// CUDA devices and their kernel tables; needs no CUDA header.
#pragma once

#include "kernels/kernels.h"

namespace bev {

// Number of usable devices; 0 without a driver.
int cuda_device_count();

const Kernels& cuda_kernels();

}  // namespace bev
