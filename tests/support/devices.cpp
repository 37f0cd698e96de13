#include "tests/support/devices.h"

#include "backend/cpu/cpu_kernels.h"
#ifdef BEV_HAS_CUDA
#include "backend/cuda/device.h"
#endif

namespace bev::test {

#ifdef BEV_HAS_CUDA
std::vector<TestDevice> built_devices() { return {TestDevice::kCpu, TestDevice::kCuda}; }

const Kernels* find_device(TestDevice device) {
  if (device == TestDevice::kCpu) return &cpu_kernels();
  return cuda_device_count() > 0 ? &cuda_kernels() : nullptr;
}
#else
std::vector<TestDevice> built_devices() { return {TestDevice::kCpu}; }

const Kernels* find_device(TestDevice device) {
  return device == TestDevice::kCpu ? &cpu_kernels() : nullptr;
}
#endif

}  // namespace bev::test
