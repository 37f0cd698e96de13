#include "kernels/latent.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

class CudaLatent : public CudaRig {};

TEST_F(CudaLatent, HeadProductsMatchTheCpu) {
  for (bool transpose : {false, true}) {
    for (auto [inner, outer] : {std::array<std::int64_t, 2>{128, 512}, {512, 128}, {5, 37}}) {
      for (Dtype dtype : kModelDtypes) {
        SCOPED_TRACE(
            concat(inner, " to ", outer, transpose ? ", transposed, " : ", ", name_of(dtype)));
        constexpr std::int64_t kRows = 3, kHeads = 6;
        const std::int64_t x_step = inner + 4, y_step = outer + 3;
        const std::int64_t weight_step = inner * outer + 8;
        Twin x = random(dtype, {kRows, kHeads * x_step});
        Twin weight = random(dtype, {kHeads, weight_step});
        Twin y = twin(dtype, {kRows, kHeads * y_step},
                      std::vector<double>(static_cast<std::size_t>(kRows * kHeads * y_step), 1));
        auto args = [&](Tensor Twin::*side, Dtype of) {
          return HeadGemmArgs{(x.*side).view().data,
                              (weight.*side).view().data,
                              (y.*side).view().data,
                              of,
                              kRows,
                              kHeads,
                              inner,
                              outer,
                              kHeads * x_step,
                              x_step,
                              kHeads * y_step,
                              y_step,
                              weight_step,
                              transpose};
        };
        cpu().latent.head_gemm(cpu_stream(), args(&Twin::exact, Dtype::kF64));
        cuda().latent.head_gemm(cuda_stream(), args(&Twin::device, dtype));
        EXPECT_LT(error(y), tolerance(dtype));
      }
    }
  }
}

}  // namespace
}  // namespace bev::cuda_test
