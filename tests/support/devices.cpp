#include "tests/support/devices.h"

#include "backend/cpu/cpu_kernels.h"
#ifdef BEV_HAS_CUDA
#include "backend/cuda/device.h"
#endif

namespace bev::test {

const Kernels* find_device(TestDevice device) {
  if (device == TestDevice::kCpu) return &cpu_kernels();
#ifdef BEV_HAS_CUDA
  if (cuda_device_count() > 0) return &cuda_kernels();
#endif
  return nullptr;
}

}  // namespace bev::test
