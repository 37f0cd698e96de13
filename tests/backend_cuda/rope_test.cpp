#include "kernels/rope.h"

#include <gtest/gtest.h>

#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

class CudaRope : public CudaRig {};

TEST_F(CudaRope, TableMatchesTheCpuInF32) {
  for (std::int64_t half : {1, 5, 64}) {
    std::vector<double> frequencies;
    for (std::int64_t i = 0; i < half; ++i) {
      frequencies.push_back(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
    }
    std::vector<std::int32_t> positions;
    for (std::int32_t t = 0; t < 300; ++t) positions.push_back(t * t % 100000);
    Twin position = words(positions);
    Tensor want(host_arena(), Dtype::kF32, {300, 2 * half}, "test");
    Twin got = poisoned(Dtype::kF32, {300, 2 * half});
    cpu().rope.table(cpu_stream(), {position.exact.as<std::int32_t>(), frequencies, 1.25, want});
    cuda().rope.table(cuda_stream(),
                      {position.device.as<std::int32_t>(), frequencies, 1.25, got.device});
    std::vector<double> values = download(got.device);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(values[i], static_cast<double>(want.as<float>()[i]), 2e-7) << i;
    }
  }
}

}  // namespace
}  // namespace bev::cuda_test
