#include "tests/support/devices.h"

#include "backend/cpu/cpu_kernels.h"
#ifdef BEV_HAS_CUDA
#include <cstdlib>

#include "backend/cuda/device.h"
#include "kernels/device.h"
#endif

namespace bev::test {

#ifdef BEV_HAS_CUDA
std::vector<TestDevice> built_devices() { return {TestDevice::kCpu, TestDevice::kCuda}; }

namespace {
int limit_arch() {
  const char* text = std::getenv("BEV_LIMIT_ARCH");
  return text != nullptr ? std::atoi(text) : 0;
}

const Kernels& limited_kernels() {
  static const DeviceKernels device = [] {
    DeviceKernels table = cuda_kernels().device;
    table.open = [](const DeviceOptions& options) {
      DeviceOptions limited = options;
      limited.limit_arch = limit_arch();
      return cuda_kernels().device.open(limited);
    };
    return table;
  }();
  static const Kernels kernels = with_table(cuda_kernels(), device);
  return kernels;
}
}  // namespace

const Kernels* find_device(TestDevice device) {
  if (device == TestDevice::kCpu) return &cpu_kernels();
  return cuda_device_count() > 0 ? &limited_kernels() : nullptr;
}

bool gpu_has_arch(int arch) {
  return cuda_device_count() > 0 && cuda_arch(0, limit_arch()) >= arch;
}
#else
std::vector<TestDevice> built_devices() { return {TestDevice::kCpu}; }

const Kernels* find_device(TestDevice device) {
  return device == TestDevice::kCpu ? &cpu_kernels() : nullptr;
}

bool gpu_has_arch(int) { return false; }
#endif

}  // namespace bev::test
