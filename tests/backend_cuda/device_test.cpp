#include "base/clock.h"
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

// The host enqueues everything long before the device executes it.
TEST_F(CudaDevice, MomentsHaveTheTimeOfTheWorkBetweenThem) {
  Tensor large(device_arena(), Dtype::kF32, {std::int64_t{1} << 28}, "test");
  const double begin = monotonic_seconds();
  std::unique_ptr<DeviceTimestamp> first = cuda().device.mark(cuda_stream());
  for (int i = 0; i < 20; ++i) cuda().fill(cuda_stream(), large, i);
  std::unique_ptr<DeviceTimestamp> second = cuda().device.mark(cuda_stream());
  std::unique_ptr<DeviceTimestamp> third = cuda().device.mark(cuda_stream());
  float value = 0;
  cuda().device.fetch(cuda_stream(), large.rows(0, 1), &value).wait();
  EXPECT_LT(third->seconds_since(*first), monotonic_seconds() - begin);
  EXPECT_GT(second->seconds_since(*first), third->seconds_since(*second));
  EXPECT_GE(third->seconds_since(*second), 0);
}

}  // namespace
}  // namespace bev::cuda_test
