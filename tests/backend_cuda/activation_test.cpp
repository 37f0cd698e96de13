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

TEST_F(CudaActivation, ForwardAndBackwardMatchTheCpu) {
  for (Activation kind : kKinds) {
    for (bool gated : {false, true}) {
      for (Dtype dtype : kModelDtypes) {
        for (std::int64_t columns : {1, 8, 77, 1000, 4096}) {
          const std::int64_t rows = columns == 8 ? 3001 : 13;
          SCOPED_TRACE(concat("kind ", static_cast<int>(kind), gated ? " gated " : " plain ", rows,
                              " x ", columns, " ", name_of(dtype)));
          const std::int64_t width = gated ? 2 * columns : columns;
          Twin x = random(dtype, {rows, width}, 6), y = poisoned(dtype, {rows, columns});
          cpu().activation.forward(cpu_stream(), {x.exact, y.exact, kind, gated});
          cuda().activation.forward(cuda_stream(), {x.device, y.device, kind, gated});
          EXPECT_LT(error(y), tolerance(dtype));
          Twin dy = random(dtype, {rows, columns}), dx = poisoned(dtype, {rows, width});
          cpu().activation.backward(cpu_stream(), {dy.exact, x.exact, dx.exact, kind, gated});
          cuda().activation.backward(cuda_stream(), {dy.device, x.device, dx.device, kind, gated});
          EXPECT_LT(error(dx), tolerance(dtype));
          // Over its own input.
          cpu().activation.backward(cpu_stream(), {dy.exact, x.exact, x.exact, kind, gated});
          cuda().activation.backward(cuda_stream(), {dy.device, x.device, x.device, kind, gated});
          EXPECT_LT(error(x), tolerance(dtype));
        }
      }
    }
  }
}

TEST_F(CudaActivation, LimitedGatesMatchTheCpu) {
  const GateLimits limits{.clamp = 0.75, .offset = 1};
  for (Dtype dtype : kModelDtypes) {
    for (std::int64_t columns : {8, 77, 2048}) {
      SCOPED_TRACE(concat(columns, " ", name_of(dtype)));
      const Activation kind = Activation::kQuickGelu;
      Twin x = random(dtype, {13, 2 * columns}, 2), y = poisoned(dtype, {13, columns});
      cpu().activation.forward(cpu_stream(), {x.exact, y.exact, kind, true, limits});
      cuda().activation.forward(cuda_stream(), {x.device, y.device, kind, true, limits});
      EXPECT_LT(error(y), tolerance(dtype));
      Twin dy = random(dtype, {13, columns}), dx = poisoned(dtype, {13, 2 * columns});
      cpu().activation.backward(cpu_stream(), {dy.exact, x.exact, dx.exact, kind, true, limits});
      cuda().activation.backward(cuda_stream(),
                                 {dy.device, x.device, dx.device, kind, true, limits});
      EXPECT_LT(error(dx), tolerance(dtype));
    }
  }
}

// Some rows have no token, some slots no row.
TEST_F(CudaActivation, WeighedRowsMatchTheCpu) {
  const std::int64_t rows = 29, topk = 3, slots = 11 * topk;
  std::vector<std::int32_t> slot_of_row;
  for (std::int32_t r = 0; r < rows; ++r) slot_of_row.push_back(r % 5 == 4 ? -1 : slots - 1 - r);
  Twin order = words(slot_of_row);
  for (Activation kind : kKinds) {
    for (bool gated : {false, true}) {
      for (Dtype dtype : kModelDtypes) {
        for (std::int64_t columns : {1, 8, 77, 768}) {
          SCOPED_TRACE(concat("kind ", static_cast<int>(kind), gated ? " gated " : " plain ",
                              columns, " ", name_of(dtype)));
          const std::int64_t width = gated ? 2 * columns : columns;
          const GateLimits limits = gated ? GateLimits{.clamp = 2, .offset = 1} : GateLimits{};
          Twin x = random(dtype, {rows, width}, 3), y = poisoned(dtype, {rows, columns});
          Twin dy = random(dtype, {rows, columns}), dx = poisoned(dtype, {rows, width});
          Twin probs = random(Dtype::kF32, {slots / topk, topk});
          Twin dprobs = poisoned(Dtype::kF32, {slots / topk, topk});
          auto run = [&](const Kernels& kernels, const Stream& stream, Tensor Twin::*side) {
            const RowWeights weights{probs.*side, (order.*side).as<std::int32_t>()};
            ActivationForwardArgs forward{x.*side, y.*side, kind, gated, limits};
            forward.weights = weights;
            kernels.activation.forward(stream, forward);
            ActivationBackwardArgs backward{dy.*side, x.*side, dx.*side, kind, gated, limits};
            backward.weights = weights;
            backward.dprobs = dprobs.*side;
            kernels.activation.backward(stream, backward);
          };
          run(cpu(), cpu_stream(), &Twin::exact);
          run(cuda(), cuda_stream(), &Twin::device);
          EXPECT_LT(error(y), tolerance(dtype));
          EXPECT_LT(error(dx), tolerance(dtype));
          EXPECT_LT(error(dprobs), tolerance(Dtype::kF32));
        }
      }
    }
  }
}

// Where exponentials overflow or vanish.
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
