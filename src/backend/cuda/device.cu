#include <cuda_runtime.h>

#include <vector>

#include "backend/cuda/device.h"

namespace bev {

namespace {

__global__ void axpy_kernel(float alpha, const float* x, float* y, std::int64_t n) {
  std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (i < n) y[i] += alpha * x[i];
}

void axpy(void* stream, float alpha, const float* x, float* y, std::int64_t n) {
  constexpr int kThreads = 256;
  auto blocks = static_cast<unsigned>((n + kThreads - 1) / kThreads);
  if (blocks > 0)
    axpy_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(alpha, x, y, n);
}

std::string error_text(const char* what, cudaError_t error) {
  return std::string(what) + ": " + cudaGetErrorString(error);
}

}  // namespace

const CudaDeviceKernels& cuda_device_kernels() {
  static const CudaDeviceKernels kernels{axpy};
  return kernels;
}

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::string cuda_self_check() {
  constexpr std::int64_t kCount = 1000;
  std::vector<float> x(kCount), y(kCount, 1.0f);
  for (std::int64_t i = 0; i < kCount; ++i) x[i] = static_cast<float>(i);
  std::size_t bytes = kCount * sizeof(float);
  float *device_x = nullptr, *device_y = nullptr;
  cudaError_t error = cudaMalloc(&device_x, bytes);
  if (error == cudaSuccess) error = cudaMalloc(&device_y, bytes);
  if (error == cudaSuccess) error = cudaMemcpy(device_x, x.data(), bytes, cudaMemcpyHostToDevice);
  if (error == cudaSuccess) error = cudaMemcpy(device_y, y.data(), bytes, cudaMemcpyHostToDevice);
  if (error == cudaSuccess) {
    cuda_device_kernels().axpy(nullptr, 2.0f, device_x, device_y, kCount);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaMemcpy(y.data(), device_y, bytes, cudaMemcpyDeviceToHost);
  cudaFree(device_x);
  cudaFree(device_y);
  if (error != cudaSuccess) return error_text("cuda self check", error);
  for (std::int64_t i = 0; i < kCount; ++i) {
    if (y[i] != 1.0f + 2.0f * static_cast<float>(i))
      return "cuda self check: wrong result at " + std::to_string(i);
  }
  return "";
}

}  // namespace bev
