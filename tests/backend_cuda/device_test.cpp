#include <gtest/gtest.h>

#ifdef BEV_HAS_CUDA
#include "backend/cuda/device.h"

namespace bev {
namespace {

TEST(CudaDevice, KernelTableIsFilled) { EXPECT_NE(cuda_device_kernels().axpy, nullptr); }

TEST(CudaDevice, FirstDeviceComputesRight) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  EXPECT_EQ(cuda_self_check(), "");
}

}  // namespace
}  // namespace bev
#endif
