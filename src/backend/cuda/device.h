// The CUDA backend's first table: devices, and one kernel that proves that compiler, runtime and
// card work together. No CUDA header is needed to use it.
#pragma once

#include <cstdint>
#include <string>

namespace bev {

struct CudaDeviceKernels {
  // y[i] += alpha * x[i] for n floats in device memory, on the given stream (a cudaStream_t).
  void (*axpy)(void* stream, float alpha, const float* x, float* y, std::int64_t n);
};
const CudaDeviceKernels& cuda_device_kernels();

// Devices that can be used; 0 also without a driver.
int cuda_device_count();
// Runs axpy on the first device and compares: "" when right, else what is wrong.
std::string cuda_self_check();

}  // namespace bev
