// Cases that the rows of tests/ops do not cover: in-place outputs, and values that overflow.
#include "kernels/activation.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "tests/backend_cuda/family.h"

namespace bev::cuda_test {
namespace {

class CudaActivation : public CudaRig {};

const std::vector<Activation> kKinds = {Activation::kGelu,        Activation::kGeluTanh,
                                        Activation::kSilu,        Activation::kRelu,
                                        Activation::kSquaredRelu, Activation::kQuickGelu};

TEST_F(CudaActivation, BackwardMayWriteOverItsInput) {
  for (Activation kind : kKinds) {
    for (bool gated : {false, true}) {
      for (Dtype dtype : kModelDtypes) {
        for (std::int64_t columns : {1, 77, 1000}) {
          SCOPED_TRACE(concat("kind ", static_cast<int>(kind), gated ? " gated " : " plain ",
                              columns, " ", name_of(dtype)));
          Twin x = random(dtype, {13, gated ? 2 * columns : columns}, 6);
          Twin dy = random(dtype, {13, columns});
          cpu().activation.backward(cpu_stream(), {dy.exact, x.exact, x.exact, kind, gated});
          cuda().activation.backward(cuda_stream(), {dy.device, x.device, x.device, kind, gated});
          EXPECT_LT(error(x), tolerance(dtype));
        }
      }
    }
  }
}

// Inputs whose exponentials overflow or underflow.
TEST_F(CudaActivation, LargeInputsStayExact) {
  const std::vector<double> values = {-30000, -1000, -100, -88, -20, -0.0, 0, 20, 88, 100, 30000};
  const auto size = static_cast<std::int64_t>(values.size());
  for (Activation kind : kKinds) {
    if (kind == Activation::kSquaredRelu) continue;
    Twin x = twin(Dtype::kF32, {1, size}, values), y = poisoned(Dtype::kF32, {1, size});
    Twin dy = twin(Dtype::kF32, {1, size}, std::vector<double>(values.size(), 1));
    Twin dx = poisoned(Dtype::kF32, {1, size});
    cpu().activation.forward(cpu_stream(), {x.exact, y.exact, kind, false});
    cuda().activation.forward(cuda_stream(), {x.device, y.device, kind, false});
    EXPECT_LT(error(y), 1e-6) << static_cast<int>(kind);
    cpu().activation.backward(cpu_stream(), {dy.exact, x.exact, dx.exact, kind, false});
    cuda().activation.backward(cuda_stream(), {dy.device, x.device, dx.device, kind, false});
    EXPECT_LT(error(dx), 1e-6) << static_cast<int>(kind);
  }
}

}  // namespace
}  // namespace bev::cuda_test
