#include "tests/backend_cuda/rig.h"

namespace bev::cuda_test {
namespace {

using CudaDevice = CudaRig;

TEST_F(CudaDevice, BytesSurviveTheWayThereAndBack) {
  Twin numbers = random(Dtype::kF32, {1000, 77});
  EXPECT_EQ(error(numbers), 0);
  Twin other = poisoned(Dtype::kF32, {1000, 77});
  cuda().device.copy(cuda_stream(), numbers.device, other.device);
  EXPECT_EQ(download(other.device), download(numbers.device));
}

TEST_F(CudaDevice, MoreMemoryThanThereIsIsAnErrorAndNoEnd) {
  EXPECT_THROW(Tensor(device_arena(), Dtype::kU8, {std::int64_t{1} << 50}, "test"), Error);
  EXPECT_EQ(error(random(Dtype::kF32, {8})), 0);
}

}  // namespace
}  // namespace bev::cuda_test
