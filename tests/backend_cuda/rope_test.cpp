#include "kernels/rope.h"

#include <gtest/gtest.h>

#include "base/text.h"
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

struct RopeCase {
  std::int64_t tokens, heads, other_heads, head_size, width;
  std::int64_t begin = 0;
};

TEST_F(CudaRope, ApplyRotatesTheFirstDimsOfTheFirstHeads) {
  // Whole heads, parts of heads, sizes that no pack divides, an odd head size.
  const std::vector<RopeCase> cases = {
      {33, 10, 2, 128, 128}, {20, 4, 1, 64, 32},   {7, 3, 1, 80, 20},        {5, 2, 1, 11, 6},
      {3, 1, 0, 2, 2},       {300, 2, 1, 256, 64}, {40, 3, 1, 192, 64, 128}, {9, 2, 0, 13, 4, 7}};
  for (const RopeCase& item : cases) {
    for (Dtype dtype : kModelDtypes) {
      for (bool interleaved : {false, true}) {
        for (bool inverse : {false, true}) {
          SCOPED_TRACE(concat("head size ", item.head_size, " width ", item.width, " ",
                              name_of(dtype), interleaved ? " interleaved" : ""));
          const std::int64_t row = (item.heads + item.other_heads) * item.head_size;
          Twin x = random(dtype, {item.tokens, row});
          Twin table = random(Dtype::kF32, {item.tokens, item.width});
          auto args = [&](Tensor Twin::*side) {
            return RopeApplyArgs{.x = (x.*side).view(),
                                 .cos_sin = (table.*side).view(),
                                 .heads = item.heads,
                                 .head_size = item.head_size,
                                 .begin = item.begin,
                                 .interleaved = interleaved,
                                 .inverse = inverse};
          };
          cpu().rope.apply(cpu_stream(), args(&Twin::exact));
          cuda().rope.apply(cuda_stream(), args(&Twin::device));
          EXPECT_LT(error(x), tolerance(dtype));
        }
      }
    }
  }
}

}  // namespace
}  // namespace bev::cuda_test
